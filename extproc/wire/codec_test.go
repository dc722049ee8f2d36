// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
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
	"github.com/holdgate/holdgate/extproc/extproctest"
)

// receive does what grpc does with a message.
func receive(data mem.BufferSlice, in *Inbound) error {
	defer data.Free()
	return Codec().Unmarshal(data, in)
}

func inboundMessages() map[string]*extprocv3.ProcessingRequest {
	many := make([]string, 0, 400)
	for i := range 200 {
		many = append(many, fmt.Sprintf("x-%d", i), strings.Repeat("v", i*7))
	}
	all := map[string]*extprocv3.ProcessingRequest{
		"headers":              extproctest.RequestHeaders(false, ":method", "POST", ":path", "/v1/chat/completions", "x-empty", "", "x-bytes", "\xff\x00"),
		"headers at the end":   extproctest.RequestHeaders(true, ":method", "GET"),
		"headers, twice one":   extproctest.RequestHeaders(false, "a", "1", "a", "2"),
		"many headers":         extproctest.RequestHeaders(false, many...),
		"no headers":           extproctest.RequestHeaders(false),
		"no header map":        {Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{}}},
		"headers in text form": {Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{{Key: "a", Value: "text"}}}}}},
		"body":                 extproctest.RequestBody(`{"model":"m"}`, false),
		"last body":            extproctest.RequestBody(strings.Repeat("x", 64<<10), true),
		"empty body":           extproctest.RequestBody("", false),
		"empty last body":      extproctest.RequestBody("", true),
		"no body message":      {Request: &extprocv3.ProcessingRequest_RequestBody{}},
		"body with more fields": {Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{
			Body: []byte("x"), EndOfStreamWithoutMessage: true, GrpcMessageCompressed: true, EndOfStream: true,
		}}},
		"trailers":          extproctest.RequestTrailers("x-t", "1"),
		"empty trailers":    extproctest.RequestTrailers(),
		"response headers":  {Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{Headers: extproctest.HeaderMap(":status", "200"), EndOfStream: true}}},
		"response body":     {Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: []byte("xyz"), EndOfStream: true}}},
		"response trailers": {Request: &extprocv3.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extprocv3.HttpTrailers{}}},
		"response modes": {
			Request:        extproctest.RequestHeaders(false, ":method", "POST").GetRequest(),
			ProtocolConfig: &extprocv3.ProtocolConfiguration{ResponseBodyMode: procfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED},
		},
		"nothing": {},
	}
	for name, m := range all {
		all[name+", decorated"] = extproctest.Decorated(m)
	}
	return all
}

// wanted is what m has, by the generated types.
func wanted(m *extprocv3.ProcessingRequest) (kind Kind, end bool, headers [][2]string, body []byte) {
	switch r := m.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		for _, h := range r.RequestHeaders.GetHeaders().GetHeaders() {
			value := h.GetRawValue()
			if len(value) == 0 {
				value = []byte(h.GetValue())
			}
			headers = append(headers, [2]string{h.GetKey(), string(value)})
		}
		return RequestHeaders, r.RequestHeaders.GetEndOfStream(), headers, nil
	case *extprocv3.ProcessingRequest_RequestBody:
		return RequestBody, r.RequestBody.GetEndOfStream(), nil, r.RequestBody.GetBody()
	case *extprocv3.ProcessingRequest_RequestTrailers:
		return RequestTrailers, true, nil, nil
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		return ResponseHeaders, false, nil, nil
	case *extprocv3.ProcessingRequest_ResponseBody:
		return ResponseBody, r.ResponseBody.GetEndOfStream(), nil, r.ResponseBody.GetBody()
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		return ResponseTrailers, false, nil, nil
	default:
		return Other, false, nil, nil
	}
}

func requireAgrees(t require.TestingT, m *extprocv3.ProcessingRequest, in *Inbound) {
	kind, end, headers, body := wanted(m)
	require.Equal(t, kind, in.Kind)
	require.Equal(t, end, in.End)
	var got [][2]string
	if in.Kind == RequestHeaders {
		require.NotNil(t, in.raw)
		for name, value := range in.Headers.All() {
			got = append(got, [2]string{string(name), string(value)})
		}
	}
	require.Equal(t, headers, got)
	require.Equal(t, kind == RequestHeaders && m.GetProtocolConfig().GetResponseBodyMode() == procfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED, in.DuplexResponse)
	if in.Kind == RequestBody || in.Kind == ResponseBody {
		require.Equal(t, len(body), in.Body.Len())
		require.True(t, bytes.Equal(body, in.Body.ReadOnlyData()))
	} else {
		require.Nil(t, in.Body)
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
				pool := &extproctest.CountingPool{}
				var in Inbound
				require.NoError(t, receive(pool.In(data, pieces), &in))
				requireAgrees(t, m, &in)
				in.Free()
				in.Free() // a second time does nothing
				pool.RequireAllBack(t)
			}
		})
	}
}

// Swaps the package's pool, so nothing may run beside it.
func TestBuffersAreFreedExactlyOnce(t *testing.T) { //nolint:paralleltest // see above
	pool := &extproctest.CountingPool{}
	usual := Buffers
	Buffers = pool
	defer func() { Buffers = usual }()
	large := extproctest.RequestBody(strings.Repeat("x", 8<<10), true)
	data, err := proto.Marshal(large)
	require.NoError(t, err)
	for pieces := 1; pieces <= 4; pieces++ {
		t.Run(fmt.Sprintf("%d pieces", pieces), func(t *testing.T) {
			var in Inbound
			require.NoError(t, receive(pool.In(data, pieces), &in))
			require.Equal(t, 1, pool.OutNow(), "the body keeps one buffer")
			in.Free()
			pool.RequireAllBack(t)

			require.NoError(t, receive(pool.In(data, pieces), &in))
			out := ForwardBody(in.Body, in.End)
			sent, err := Codec().Marshal(out)
			require.NoError(t, err)
			require.Equal(t, 1, pool.OutNow(), "on its way back it is the same buffer")
			sent.Free() // what grpc does when it was sent
			pool.RequireAllBack(t)

			damaged := append(bytes.Clone(data), 0x0a, 0x7f)
			require.ErrorIs(t, receive(pool.In(damaged, pieces), &in), errWire)
			pool.RequireAllBack(t)
			in.Free()
			pool.RequireAllBack(t)
		})
	}
}

// A message may be in a buffer that others share: cutting the body out must
// leave their part of it alone.
func TestTheBodyIsCutOutOfASharedBuffer(t *testing.T) {
	t.Parallel()
	one, err := proto.Marshal(extproctest.RequestBody(strings.Repeat("a", 3000), false))
	require.NoError(t, err)
	two, err := proto.Marshal(extproctest.RequestBody(strings.Repeat("b", 3000), true))
	require.NoError(t, err)
	pool := &extproctest.CountingPool{}
	frame := pool.In(append(bytes.Clone(one), two...), 1)[0]
	left, right := mem.SplitUnsafe(frame, len(one))
	var first, second Inbound
	require.NoError(t, receive(mem.BufferSlice{left}, &first))
	require.NoError(t, receive(mem.BufferSlice{right}, &second))
	require.Equal(t, strings.Repeat("a", 3000), string(first.Body.ReadOnlyData()))
	first.Free()
	require.Equal(t, strings.Repeat("b", 3000), string(second.Body.ReadOnlyData()))
	second.Free()
	pool.RequireAllBack(t)
}

func TestDamagedMessagesAreRefused(t *testing.T) {
	t.Parallel()
	headers, err := proto.Marshal(extproctest.RequestHeaders(true, "a", "b"))
	require.NoError(t, err)
	body, err := proto.Marshal(extproctest.RequestBody("x", true))
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
			var in Inbound
			require.ErrorIs(t, receive(mem.BufferSlice{mem.SliceBuffer(data)}, &in), errWire)
			require.Nil(t, in.raw)
			require.Nil(t, in.Body)
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
			var in Inbound
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
		pool := &extproctest.CountingPool{}
		var in Inbound
		err := receive(pool.In(data, 1+int(pieces%8)), &in)
		m := &extprocv3.ProcessingRequest{}
		if proto.Unmarshal(data, m) == nil {
			if err == nil {
				requireAgrees(t, m, &in)
			}
			// What repeats a field that stands once is refused; in its usual form the
			// same message is read.
			usual, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
			require.NoError(t, err)
			var again Inbound
			require.NoError(t, receive(mem.BufferSlice{mem.SliceBuffer(usual)}, &again))
			requireAgrees(t, m, &again)
		}
		if err != nil {
			require.Equal(t, Inbound{}.raw, in.raw)
		}
		for range in.Headers.All() {
			continue // it must end without a panic
		}
		in.Free()
		pool.RequireAllBack(t)
	})
}

func unmarshalled(t *testing.T, out *Outbound) *extprocv3.ProcessingResponse {
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

// headResponse is a ForwardHead in the generated types.
func headResponse(f *ForwardHead) *extprocv3.ProcessingResponse {
	entries := map[string]*structpb.Value{}
	for _, kv := range f.Metadata {
		entries[kv[0]] = structpb.NewStringValue(kv[1])
	}
	namespaces := map[string]*structpb.Value{envoy.Namespace: structpb.NewStructValue(&structpb.Struct{Fields: entries})}
	if f.Picked != "" {
		namespaces[envoy.PickedNamespace] = structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
			envoy.PickedHeader: structpb.NewStringValue(f.Picked),
		}})
	}
	return &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{
			Response: &extprocv3.CommonResponse{HeaderMutation: &extprocv3.HeaderMutation{
				SetHeaders: f.Set.options(), RemoveHeaders: f.Remove,
			}, ClearRouteCache: f.Reroute},
		}},
		DynamicMetadata: &structpb.Struct{Fields: namespaces},
	}
}

func TestForwardHeadAgreesWithTheGeneratedTypes(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("long ", 1000)
	many := HeaderList{}
	var names []string
	for i := range 100 {
		many = append(many, [2]string{fmt.Sprintf("key-%d", i), strings.Repeat("v", i)})
		names = append(names, fmt.Sprintf("x-wake-%d", i))
	}
	for name, f := range map[string]*ForwardHead{
		"nothing":        {},
		"native":         {Metadata: HeaderList{{"mode", "native"}, {"first", "10.0.0.1:8000"}, {"content_length", "1024"}}},
		"everything":     {Metadata: HeaderList{{"mode", "native"}, {"server_timing", "hold;dur=1, queue;dur=2"}}, Set: HeaderList{{"x-request-id", "id"}, {"b", ""}}, Remove: []string{"x-wake-keepalive", "x-wake-timeout"}},
		"long value":     {Metadata: HeaderList{{"mode", long}}, Set: HeaderList{{"a", long}, {"b", "short"}}, Remove: []string{long}},
		"long, then not": {Metadata: HeaderList{{"a", long}, {"b", "short"}, {"c", long}}, Set: HeaderList{{long, "a"}, {"b", "c"}}},
		"many":           {Metadata: many, Set: many, Remove: names},
		"for a page":     {Metadata: HeaderList{{"mode", "native"}, {"cors_origin", ""}}, Remove: []string{"origin"}, Reroute: true},
		"only removals":  {Metadata: HeaderList{{"mode", "native"}}, Remove: names},
		"picked":         {Metadata: HeaderList{{"mode", "native"}}, Picked: "10.0.0.1:8000,[fd00::1]:8000"},
		"long picked":    {Metadata: HeaderList{{"mode", "native"}}, Picked: long},
		"rerouted":       {Metadata: HeaderList{{"mode", "native"}, {"tls", "system"}}, Reroute: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := headResponse(f)
			requireProto(t, want, unmarshalled(t, f.Encode()))
			whole := want.GetRequestHeaders().GetResponse()
			whole.Status = extprocv3.CommonResponse_CONTINUE_AND_REPLACE
			whole.BodyMutation = &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_Body{Body: []byte(long)}}
			chunks := []mem.Buffer{mem.SliceBuffer(long[:70]), mem.SliceBuffer(long[70:])}
			requireProto(t, want, unmarshalled(t, f.EncodeWith(chunks, int64(len(long)))))
		})
	}
}

func TestForwardBodyAgreesWithTheGeneratedTypes(t *testing.T) {
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
			require.True(t, proto.Equal(want, unmarshalled(t, ForwardBody(mem.SliceBuffer(chunk), end))), "%d bytes", n)
		}
	}
}

func TestEmptyAnswersAgreeWithTheGeneratedTypes(t *testing.T) {
	t.Parallel()
	requireProto(t, &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{
		RequestHeaders: &extprocv3.HeadersResponse{},
	}}, unmarshalled(t, PassHeaders()))
	requireProto(t, &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{
		RequestHeaders: &extprocv3.HeadersResponse{Response: &extprocv3.CommonResponse{
			HeaderMutation: &extprocv3.HeaderMutation{RemoveHeaders: []string{"a"}},
		}},
	}}, unmarshalled(t, PassWithout("a")))
	requireProto(t, &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestTrailers{
		RequestTrailers: &extprocv3.TrailersResponse{},
	}}, unmarshalled(t, ForwardTrailers()))
}

// Messages that are not written by hand go through the usual codec.
func TestOtherMessagesGoThroughTheUsualCodec(t *testing.T) {
	t.Parallel()
	m := StreamHead(200, nil)
	data, err := Codec().Marshal(m)
	require.NoError(t, err)
	got := &extprocv3.ProcessingResponse{}
	require.NoError(t, Codec().Unmarshal(data, got))
	requireProto(t, m, got)
	require.Equal(t, "proto", Codec().Name())
}

func BenchmarkForwardHead(b *testing.B) {
	f := &ForwardHead{Metadata: HeaderList{{"mode", "native"}, {"first", "10.0.0.1:8000"}, {"content_length", "1024"}}}
	b.ReportAllocs()
	for b.Loop() {
		f.Encode()
	}
}

func BenchmarkInboundBody(b *testing.B) {
	data, err := proto.Marshal(extproctest.RequestBody(strings.Repeat("x", 64<<10), true))
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		var in Inbound
		_ = in.parse(mem.BufferSlice{mem.SliceBuffer(data)})
		in.Free()
	}
}

// What a body message has beside its body lies in a buffer that is given back.
func TestOnlyAHeadersMessageKeepsItsMetadata(t *testing.T) {
	t.Parallel()
	for _, m := range inboundMessages() {
		data, err := proto.Marshal(extproctest.Decorated(m))
		require.NoError(t, err)
		var in Inbound
		require.NoError(t, receive(mem.BufferSlice{mem.SliceBuffer(data)}, &in))
		require.Equal(t, in.Kind == RequestHeaders, in.Metadata != nil)
		in.Free()
	}
}
