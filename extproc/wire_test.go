// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	procfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdgate/holdgate/envoy"
)

// countingPool hands out buffers and notices one that comes back twice, or that
// it never gave.
type countingPool struct {
	mu    sync.Mutex
	out   map[*byte]int
	wrong []string
}

func (p *countingPool) Get(n int) *[]byte {
	b := make([]byte, n, max(n, 2<<10)) // above grpc's threshold for pooling
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.out == nil {
		p.out = map[*byte]int{}
	}
	p.out[&b[:1][0]] = n
	return &b
}

func (p *countingPool) Put(b *[]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := &(*b)[:1][0]
	if _, ok := p.out[at]; !ok {
		p.wrong = append(p.wrong, fmt.Sprintf("%d bytes came back that are not out", len(*b)))
	}
	delete(p.out, at)
	// Who reads it after this reads something else.
	all := (*b)[:cap(*b)]
	for i := range all {
		all[i] = 0xdb
	}
}

func (p *countingPool) outNow() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.out)
}

func (p *countingPool) requireAllBack(t require.TestingT) {
	p.mu.Lock()
	defer p.mu.Unlock()
	require.Empty(t, p.wrong)
	require.Empty(t, p.out, "buffers are out")
}

// in cuts data in pieces that come from the pool.
func (p *countingPool) in(data []byte, pieces int) mem.BufferSlice {
	var out mem.BufferSlice
	for i := range pieces {
		part := data[i*len(data)/pieces : (i+1)*len(data)/pieces]
		b := p.Get(len(part))
		copy(*b, part)
		out = append(out, mem.NewBuffer(b, p))
	}
	return out
}

// receive does what grpc does with a message.
func receive(data mem.BufferSlice, in *inbound) error {
	defer data.Free()
	return Codec().Unmarshal(data, in)
}

func headerMap(kv ...string) *corev3.HeaderMap {
	m := &corev3.HeaderMap{}
	for i := 0; i < len(kv); i += 2 {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: kv[i], RawValue: []byte(kv[i+1])})
	}
	return m
}

func requestHeaders(end bool, kv ...string) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{
		RequestHeaders: &extprocv3.HttpHeaders{Headers: headerMap(kv...), EndOfStream: end},
	}}
}

func requestBody(b string, end bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: []byte(b), EndOfStream: end},
	}}
}

func requestTrailers(kv ...string) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestTrailers{
		RequestTrailers: &extprocv3.HttpTrailers{Trailers: headerMap(kv...)},
	}}
}

// decorated adds what Envoy may add to any message.
func decorated(m *extprocv3.ProcessingRequest) *extprocv3.ProcessingRequest {
	m = proto.CloneOf(m)
	attributes, _ := structpb.NewStruct(map[string]any{"request.path": "/v1/x", "n": 7.5, "list": []any{"a", nil, true}})
	m.Attributes = map[string]*structpb.Struct{"envoy.filters.http.ext_proc": attributes, "": {}}
	m.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"holdgate": attributes}}
	m.ProtocolConfig = &extprocv3.ProtocolConfiguration{
		RequestBodyMode:                         procfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
		SendBodyWithoutWaitingForHeaderResponse: true,
	}
	m.ObservabilityMode = true
	return m
}

func inboundMessages() map[string]*extprocv3.ProcessingRequest {
	many := make([]string, 0, 400)
	for i := range 200 {
		many = append(many, fmt.Sprintf("x-%d", i), strings.Repeat("v", i*7))
	}
	all := map[string]*extprocv3.ProcessingRequest{
		"headers":              requestHeaders(false, ":method", "POST", ":path", "/v1/chat/completions", "x-empty", "", "x-bytes", "\xff\x00"),
		"headers at the end":   requestHeaders(true, ":method", "GET"),
		"headers, twice one":   requestHeaders(false, "a", "1", "a", "2"),
		"many headers":         requestHeaders(false, many...),
		"no headers":           requestHeaders(false),
		"no header map":        {Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{}}},
		"headers in text form": {Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{{Key: "a", Value: "text"}}}}}},
		"body":                 requestBody(`{"model":"m"}`, false),
		"last body":            requestBody(strings.Repeat("x", 64<<10), true),
		"empty body":           requestBody("", false),
		"empty last body":      requestBody("", true),
		"no body message":      {Request: &extprocv3.ProcessingRequest_RequestBody{}},
		"body with more fields": {Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{
			Body: []byte("x"), EndOfStreamWithoutMessage: true, GrpcMessageCompressed: true, EndOfStream: true,
		}}},
		"trailers":          requestTrailers("x-t", "1"),
		"empty trailers":    requestTrailers(),
		"response headers":  {Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{Headers: headerMap(":status", "200"), EndOfStream: true}}},
		"response body":     {Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: []byte("xyz"), EndOfStream: true}}},
		"response trailers": {Request: &extprocv3.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extprocv3.HttpTrailers{}}},
		"response modes": {
			Request:        requestHeaders(false, ":method", "POST").GetRequest(),
			ProtocolConfig: &extprocv3.ProtocolConfiguration{ResponseBodyMode: procfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED},
		},
		"nothing": {},
	}
	for name, m := range all {
		all[name+", decorated"] = decorated(m)
	}
	return all
}

// wanted is what m says, by the usual types.
func wanted(m *extprocv3.ProcessingRequest) (kind inboundKind, end bool, headers [][2]string, body []byte) {
	switch r := m.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		for _, h := range r.RequestHeaders.GetHeaders().GetHeaders() {
			value := h.GetRawValue()
			if len(value) == 0 {
				value = []byte(h.GetValue())
			}
			headers = append(headers, [2]string{h.GetKey(), string(value)})
		}
		return inboundHeaders, r.RequestHeaders.GetEndOfStream(), headers, nil
	case *extprocv3.ProcessingRequest_RequestBody:
		return inboundBody, r.RequestBody.GetEndOfStream(), nil, r.RequestBody.GetBody()
	case *extprocv3.ProcessingRequest_RequestTrailers:
		return inboundTrailers, true, nil, nil
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		return inboundResponseHeaders, false, nil, nil
	case *extprocv3.ProcessingRequest_ResponseBody:
		return inboundResponseBody, r.ResponseBody.GetEndOfStream(), nil, r.ResponseBody.GetBody()
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		return inboundResponseTrailers, false, nil, nil
	default:
		return inboundOther, false, nil, nil
	}
}

func requireAgrees(t require.TestingT, m *extprocv3.ProcessingRequest, in *inbound) {
	kind, end, headers, body := wanted(m)
	require.Equal(t, kind, in.kind)
	require.Equal(t, end, in.end)
	var got [][2]string
	if in.kind == inboundHeaders {
		require.NotNil(t, in.raw)
		for name, value := range in.headers.all() {
			got = append(got, [2]string{string(name), string(value)})
		}
	}
	require.Equal(t, headers, got)
	require.Equal(t, kind == inboundHeaders && m.GetProtocolConfig().GetResponseBodyMode() == procfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED, in.duplexResponse)
	if in.kind == inboundBody || in.kind == inboundResponseBody {
		require.Equal(t, len(body), in.body.Len())
		require.True(t, bytes.Equal(body, in.body.ReadOnlyData()))
	} else {
		require.Nil(t, in.body)
	}
}

func TestInboundAgreesWithTheGeneratedTypes(t *testing.T) {
	t.Parallel()
	for name, m := range inboundMessages() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data, err := proto.Marshal(m)
			require.NoError(t, err)
			for pieces := 1; pieces <= 4; pieces++ {
				pool := &countingPool{}
				var in inbound
				require.NoError(t, receive(pool.in(data, pieces), &in))
				requireAgrees(t, m, &in)
				in.free()
				in.free() // a second time does nothing
				pool.requireAllBack(t)
			}
		})
	}
}

// Swaps the package's pool, so nothing may run beside it.
func TestBuffersAreFreedExactlyOnce(t *testing.T) { //nolint:paralleltest // see above
	pool := &countingPool{}
	usual := buffers
	buffers = pool
	defer func() { buffers = usual }()
	large := requestBody(strings.Repeat("x", 8<<10), true)
	data, err := proto.Marshal(large)
	require.NoError(t, err)
	for pieces := 1; pieces <= 4; pieces++ {
		t.Run(fmt.Sprintf("%d pieces", pieces), func(t *testing.T) {
			var in inbound
			require.NoError(t, receive(pool.in(data, pieces), &in))
			require.Equal(t, 1, pool.outNow(), "the body keeps one buffer")
			in.free()
			pool.requireAllBack(t)

			require.NoError(t, receive(pool.in(data, pieces), &in))
			out := forwardBody(in.body, in.end)
			sent, err := Codec().Marshal(out)
			require.NoError(t, err)
			require.Equal(t, 1, pool.outNow(), "on its way back it is the same buffer")
			sent.Free() // what grpc does when it was sent
			pool.requireAllBack(t)

			damaged := append(bytes.Clone(data), 0x0a, 0x7f)
			require.ErrorIs(t, receive(pool.in(damaged, pieces), &in), errWire)
			pool.requireAllBack(t)
			in.free()
			pool.requireAllBack(t)
		})
	}
}

// A message may come in a buffer that others share: cutting the body out must
// leave their part of it alone.
func TestTheBodyIsCutOutOfASharedBuffer(t *testing.T) {
	t.Parallel()
	one, err := proto.Marshal(requestBody(strings.Repeat("a", 3000), false))
	require.NoError(t, err)
	two, err := proto.Marshal(requestBody(strings.Repeat("b", 3000), true))
	require.NoError(t, err)
	pool := &countingPool{}
	frame := pool.in(append(bytes.Clone(one), two...), 1)[0]
	left, right := mem.SplitUnsafe(frame, len(one))
	var first, second inbound
	require.NoError(t, receive(mem.BufferSlice{left}, &first))
	require.NoError(t, receive(mem.BufferSlice{right}, &second))
	require.Equal(t, strings.Repeat("a", 3000), string(first.body.ReadOnlyData()))
	first.free()
	require.Equal(t, strings.Repeat("b", 3000), string(second.body.ReadOnlyData()))
	second.free()
	pool.requireAllBack(t)
}

func TestDamagedMessagesAreRefused(t *testing.T) {
	t.Parallel()
	headers, err := proto.Marshal(requestHeaders(true, "a", "b"))
	require.NoError(t, err)
	body, err := proto.Marshal(requestBody("x", true))
	require.NoError(t, err)
	for name, data := range map[string][]byte{
		"truncated":        headers[:len(headers)-1],
		"two of the oneof": append(bytes.Clone(headers), body...),
		"twice the same":   append(bytes.Clone(body), body...),
		"field 0":          {0x02, 0x00},
		"end of no group":  {0x24},
		"damaged payload":  appendBytes(nil, fieldRequestBody, []byte{0x0a, 0x05, 'x'}),
		"long varint":      append(appendBytes(nil, fieldRequestBody, []byte{0x10}), bytes.Repeat([]byte{0xff}, 11)...),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var in inbound
			require.ErrorIs(t, receive(mem.BufferSlice{mem.SliceBuffer(data)}, &in), errWire)
			require.Nil(t, in.raw)
			require.Nil(t, in.body)
		})
	}
}

// A field of another wire type is unknown, as the generated types have it.
func TestFieldsOfAnotherTypeAreUnknown(t *testing.T) {
	t.Parallel()
	number := func(num protowire.Number, v uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(nil, num, protowire.VarintType), v)
	}
	header := append(appendString(nil, fieldKey, "k"), number(fieldRawValue, 3)...)
	for name, data := range map[string][]byte{
		"request_body":  number(fieldRequestBody, 1),
		"body":          appendBytes(nil, fieldRequestBody, append(number(fieldPayload, 1), number(fieldBodyEnd, 2)...)),
		"end_of_stream": appendBytes(nil, fieldRequestBody, appendString(nil, fieldBodyEnd, "x")),
		"headers":       appendBytes(nil, fieldRequestHeaders, appendBytes(nil, fieldPayload, number(fieldHeader, 4))),
		"raw_value":     appendBytes(nil, fieldRequestHeaders, appendBytes(nil, fieldPayload, appendBytes(nil, fieldHeader, header))),
		"a group":       {0x23, 0x08, 0x01, 0x24},
		"fixed":         {0x21, 1, 2, 3, 4, 5, 6, 7, 8, 0x25, 1, 2, 3, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &extprocv3.ProcessingRequest{}
			require.NoError(t, proto.Unmarshal(data, m))
			var in inbound
			require.NoError(t, receive(mem.BufferSlice{mem.SliceBuffer(data)}, &in))
			requireAgrees(t, m, &in)
		})
	}
}

func FuzzInbound(f *testing.F) {
	for _, m := range inboundMessages() {
		data, err := proto.Marshal(m)
		require.NoError(f, err)
		if len(data) < 4<<10 {
			f.Add(data, uint8(1))
			f.Add(data, uint8(3))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, pieces uint8) {
		pool := &countingPool{}
		var in inbound
		err := receive(pool.in(data, 1+int(pieces%8)), &in)
		m := &extprocv3.ProcessingRequest{}
		if proto.Unmarshal(data, m) == nil {
			if err == nil {
				requireAgrees(t, m, &in)
			}
			// What repeats a field that stands once is refused; in its usual form the
			// same message is read.
			usual, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
			require.NoError(t, err)
			var again inbound
			require.NoError(t, receive(mem.BufferSlice{mem.SliceBuffer(usual)}, &again))
			requireAgrees(t, m, &again)
		}
		if err != nil {
			require.Equal(t, inbound{}.raw, in.raw)
		}
		for range in.headers.all() {
			continue // it must end without a panic
		}
		in.free()
		pool.requireAllBack(t)
	})
}

func unmarshalled(t *testing.T, out *outbound) *extprocv3.ProcessingResponse {
	t.Helper()
	data, err := Codec().Marshal(out)
	require.NoError(t, err)
	m := &extprocv3.ProcessingResponse{}
	require.NoError(t, proto.UnmarshalOptions{}.Unmarshal(data.Materialize(), m))
	require.Empty(t, m.ProtoReflect().GetUnknown())
	return m
}

func requireProto(t *testing.T, want, got proto.Message) {
	t.Helper()
	require.Empty(t, cmp.Diff(want, got, protocmp.Transform()))
}

// headResponse is the answer that forwardHead stands for.
func headResponse(f *forwardHead) *extprocv3.ProcessingResponse {
	entries := map[string]*structpb.Value{}
	for _, kv := range f.metadata {
		entries[kv[0]] = structpb.NewStringValue(kv[1])
	}
	return &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{
			Response: &extprocv3.CommonResponse{HeaderMutation: &extprocv3.HeaderMutation{
				SetHeaders: f.set.options(), RemoveHeaders: f.remove,
			}, ClearRouteCache: f.reroute},
		}},
		DynamicMetadata: &structpb.Struct{Fields: map[string]*structpb.Value{
			envoy.Namespace: structpb.NewStructValue(&structpb.Struct{Fields: entries}),
		}},
	}
}

func TestForwardHead(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("long ", 1000)
	many := headerList{}
	var names []string
	for i := range 100 {
		many = append(many, [2]string{fmt.Sprintf("key-%d", i), strings.Repeat("v", i)})
		names = append(names, fmt.Sprintf("x-wake-%d", i))
	}
	for name, f := range map[string]*forwardHead{
		"nothing":        {},
		"native":         {metadata: headerList{{"mode", "native"}, {"first", "10.0.0.1:8000"}, {"content_length", "1024"}}},
		"everything":     {metadata: headerList{{"mode", "native"}, {"server_timing", "hold;dur=1, queue;dur=2"}}, set: headerList{{"x-request-id", "id"}, {"b", ""}}, remove: []string{"x-wake-keepalive", "x-wake-timeout"}},
		"long value":     {metadata: headerList{{"mode", long}}, set: headerList{{"a", long}, {"b", "short"}}, remove: []string{long}},
		"long, then not": {metadata: headerList{{"a", long}, {"b", "short"}, {"c", long}}, set: headerList{{long, "a"}, {"b", "c"}}},
		"many":           {metadata: many, set: many, remove: names},
		"for a page":     {metadata: headerList{{"mode", "native"}, {"cors_origin", ""}}, remove: []string{"origin"}, reroute: true},
		"only removals":  {metadata: headerList{{"mode", "native"}}, remove: names},
		"rerouted":       {metadata: headerList{{"mode", "native"}, {"tls", "system"}}, reroute: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := headResponse(f)
			requireProto(t, want, unmarshalled(t, f.encode()))
			whole := want.GetRequestHeaders().GetResponse()
			whole.Status = extprocv3.CommonResponse_CONTINUE_AND_REPLACE
			whole.BodyMutation = &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_Body{Body: []byte(long)}}
			chunks := []mem.Buffer{mem.SliceBuffer(long[:70]), mem.SliceBuffer(long[70:])}
			requireProto(t, want, unmarshalled(t, f.encodeWith(chunks, int64(len(long)))))
		})
	}
}

func TestForwardBody(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 100, 125, 126, 127, 128, 129, 16381, 16383, 16384, 65535, 65536, 1 << 20} {
		for _, end := range []bool{false, true} {
			chunk := bytes.Repeat([]byte{byte(rand.IntN(256))}, n)
			want := &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{
				RequestBody: &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{
					Mutation: &extprocv3.BodyMutation_StreamedResponse{StreamedResponse: &extprocv3.StreamedBodyResponse{Body: chunk, EndOfStream: end}},
				}}},
			}}
			// go-cmp takes half a minute for a megabyte.
			require.True(t, proto.Equal(want, unmarshalled(t, forwardBody(mem.SliceBuffer(chunk), end))), "%d bytes", n)
		}
	}
}

func TestShortAnswers(t *testing.T) {
	t.Parallel()
	requireProto(t, &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{
		RequestHeaders: &extprocv3.HeadersResponse{},
	}}, unmarshalled(t, untouchedHead()))
	requireProto(t, &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestTrailers{
		RequestTrailers: &extprocv3.TrailersResponse{},
	}}, unmarshalled(t, forwardTrailers()))
}

// Messages that are not written by hand go through the usual codec.
func TestOtherMessagesGoThroughTheUsualCodec(t *testing.T) {
	t.Parallel()
	m := streamHead(200, nil)
	data, err := Codec().Marshal(m)
	require.NoError(t, err)
	got := &extprocv3.ProcessingResponse{}
	require.NoError(t, Codec().Unmarshal(data, got))
	requireProto(t, m, got)
	require.Equal(t, "proto", Codec().Name())
}

func BenchmarkForwardHead(b *testing.B) {
	f := &forwardHead{metadata: headerList{{"mode", "native"}, {"first", "10.0.0.1:8000"}, {"content_length", "1024"}}}
	b.ReportAllocs()
	for b.Loop() {
		f.encode()
	}
}

func BenchmarkInboundBody(b *testing.B) {
	data, err := proto.Marshal(requestBody(strings.Repeat("x", 64<<10), true))
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		var in inbound
		_ = in.parse(mem.BufferSlice{mem.SliceBuffer(data)})
		in.free()
	}
}
