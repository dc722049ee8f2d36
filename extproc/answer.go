// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"net/http"
	"slices"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/internal/refusal"
)

// local marks an answer as ours: Envoy's local_reply_config would take any answer
// of status 400 and up without it for its own.
var local = &structpb.Struct{Fields: map[string]*structpb.Value{
	envoy.Namespace: structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
		envoy.ModeKey: structpb.NewStringValue(envoy.ModeLocal),
	}}),
}}

type headerList [][2]string

func (h headerList) options() []*corev3.HeaderValueOption {
	out := make([]*corev3.HeaderValueOption, 0, len(h))
	for _, kv := range h {
		out = append(out, &corev3.HeaderValueOption{
			Header:       &corev3.HeaderValue{Key: kv[0], RawValue: []byte(kv[1])},
			AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		})
	}
	return out
}

// immediate is the answer that ends a request at once.
func immediate(status int, headers headerList, body []byte) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_ImmediateResponse{ImmediateResponse: &extprocv3.ImmediateResponse{
			Status:  &typev3.HttpStatus{Code: typev3.StatusCode(status)}, //nolint:gosec // an HTTP status
			Headers: &extprocv3.HeaderMutation{SetHeaders: headers.options()},
			Body:    body,
		}},
		DynamicMetadata: local,
	}
}

// refused is a refusal before any byte was sent.
func refused(r *refusal.Refusal, api refusal.API, more ...[2]string) *extprocv3.ProcessingResponse {
	headers := append(headerList{{"content-type", "application/json"}}, more...)
	if r.RetryAfter > 0 {
		headers = append(headers, [2]string{"retry-after", strconv.Itoa(r.RetryAfter)})
	}
	if r.Allow != "" {
		headers = append(headers, [2]string{"allow", r.Allow})
	}
	return immediate(r.Status, headers, r.Body(api))
}

// streamHead begins an answer that is sent piece by piece.
func streamHead(status int, headers []*corev3.HeaderValue) *extprocv3.ProcessingResponse {
	all := append([]*corev3.HeaderValue{{Key: ":status", RawValue: strconv.AppendInt(nil, int64(status), 10)}}, headers...)
	return &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_StreamedImmediateResponse{
			StreamedImmediateResponse: &extprocv3.StreamedImmediateResponse{
				Response: &extprocv3.StreamedImmediateResponse_HeadersResponse{
					HeadersResponse: &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{Headers: all}},
				},
			},
		},
		DynamicMetadata: local,
	}
}

// withRequestID puts the request's id into the head of an answer of ours, and in place
// of an engine's. Answers that Envoy carries get it from the route.
func withRequestID(m *extprocv3.ProcessingResponse, id string) {
	if answer := m.GetImmediateResponse(); answer != nil {
		answer.Headers.SetHeaders = append(answer.Headers.SetHeaders, headerList{{headerRequestID, id}}.options()...)
		return
	}
	head := m.GetStreamedImmediateResponse().GetHeadersResponse().GetHeaders()
	if head == nil {
		return
	}
	engines := func(h *corev3.HeaderValue) bool { return h.GetKey() == headerRequestID }
	head.Headers = append(slices.DeleteFunc(head.GetHeaders(), engines), &corev3.HeaderValue{Key: headerRequestID, RawValue: []byte(id)})
}

// streamBody is a piece of an answer that has begun.
func streamBody(piece []byte, end bool) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_StreamedImmediateResponse{
			StreamedImmediateResponse: &extprocv3.StreamedImmediateResponse{
				Response: &extprocv3.StreamedImmediateResponse_BodyResponse{
					BodyResponse: &extprocv3.StreamedBodyResponse{Body: piece, EndOfStream: end},
				},
			},
		},
	}
}

// committedHead is the head of an answer that begins before the engine has
// answered.
func (st *stream) committedHead() *extprocv3.ProcessingResponse {
	contentType := "application/json"
	if st.req.Stream {
		contentType = "text/event-stream; charset=utf-8"
	}
	headers := []*corev3.HeaderValue{
		{Key: "content-type", RawValue: []byte(contentType)},
		{Key: "cache-control", RawValue: []byte("no-cache")},
		{Key: "x-accel-buffering", RawValue: []byte("no")},
	}
	return streamHead(http.StatusOK, st.withCORS(withRateLimit(headers, st.rateLimit)))
}

// headerRateLimit tells a caller what its quota still has.
const headerRateLimit = "x-ratelimit-remaining-requests"

func withRateLimit(headers []*corev3.HeaderValue, rateLimit string) []*corev3.HeaderValue {
	if rateLimit == "" {
		return headers
	}
	return append(headers, &corev3.HeaderValue{Key: headerRateLimit, RawValue: []byte(rateLimit)})
}

// Field numbers of the answers that are written by hand: they are sent for every
// request that is served natively.
const (
	fieldHeadersResponse        = 1 // ProcessingResponse.request_headers
	fieldBodyAnswer             = 3 // ProcessingResponse.request_body
	fieldTrailersResponse       = 5 // ProcessingResponse.request_trailers
	fieldResponseHeadersAnswer  = 2 // ProcessingResponse.response_headers
	fieldResponseBodyAnswer     = 4 // ProcessingResponse.response_body
	fieldResponseTrailersAnswer = 6 // ProcessingResponse.response_trailers
	fieldDynamicMetadata        = 8 // ProcessingResponse.dynamic_metadata
	fieldCommonResponse         = 1 // HeadersResponse.response, BodyResponse.response
	fieldStatus                 = 1 // CommonResponse.status
	fieldHeaderMutation         = 2 // CommonResponse.header_mutation
	fieldBodyMutation           = 3 // CommonResponse.body_mutation
	fieldClearRouteCache        = 5 // CommonResponse.clear_route_cache
	fieldSetHeaders             = 1 // HeaderMutation.set_headers
	fieldRemoveHeaders          = 2 // HeaderMutation.remove_headers
	fieldOptionHeader           = 1 // HeaderValueOption.header
	fieldAppendAction           = 3 // HeaderValueOption.append_action
	fieldWholeBody              = 1 // BodyMutation.body
	fieldStreamedResponse       = 3 // BodyMutation.streamed_response
	fieldStreamedBody           = 1 // StreamedBodyResponse.body
	fieldStreamedEnd            = 2 // StreamedBodyResponse.end_of_stream
	fieldStructFields           = 1 // Struct.fields
	fieldMapKey                 = 1
	fieldMapValue               = 2
	fieldStringValue            = 3 // Value.string_value
	fieldStructValue            = 5 // Value.struct_value
)

// forwardHead is what a request that Envoy serves is sent on with.
type forwardHead struct {
	metadata headerList // of the namespace
	set      headerList
	remove   []string
	reroute  bool // Envoy chooses the route anew, by the metadata
}

// encode writes the HeadersResponse with its dynamic metadata.
func (f *forwardHead) encode() *outbound {
	var scratch [2][512]byte
	common := f.appendCommon(scratch[1][:0], scratch[0][:0])
	response := appendBytes(scratch[0][:0], fieldCommonResponse, common)
	out := appendBytes(make([]byte, 0, 512), fieldHeadersResponse, response)
	return &outbound{data: mem.BufferSlice{mem.SliceBuffer(f.appendMetadata(out))}}
}

// encodeWith writes a HeadersResponse that replaces the body with the chunks, of size
// bytes. The message takes the chunks over.
func (f *forwardHead) encodeWith(chunks []mem.Buffer, size int64) *outbound {
	n := int(size)
	common := f.appendCommon(nil, nil)
	common = protowire.AppendTag(common, fieldStatus, protowire.VarintType)
	common = protowire.AppendVarint(common, uint64(extprocv3.CommonResponse_CONTINUE_AND_REPLACE))
	mutation := protowire.SizeTag(fieldWholeBody) + protowire.SizeBytes(n)
	commonSize := len(common) + protowire.SizeTag(fieldBodyMutation) + protowire.SizeBytes(mutation)
	response := protowire.SizeTag(fieldCommonResponse) + protowire.SizeBytes(commonSize)

	head := appendSize(nil, fieldHeadersResponse, response)
	head = appendSize(head, fieldCommonResponse, commonSize)
	head = append(head, common...)
	head = appendSize(head, fieldBodyMutation, mutation)
	head = appendSize(head, fieldWholeBody, n)
	data := append(mem.BufferSlice{mem.SliceBuffer(head)}, chunks...)
	return &outbound{data: append(data, mem.SliceBuffer(f.appendMetadata(nil)))}
}

// appendCommon writes the CommonResponse's part that is not of the body; scratch is
// memory for the HeaderMutation.
func (f *forwardHead) appendCommon(out, scratch []byte) []byte {
	out = appendBytes(out, fieldHeaderMutation, f.appendMutation(scratch))
	if f.reroute {
		out = protowire.AppendVarint(protowire.AppendTag(out, fieldClearRouteCache, protowire.VarintType), 1)
	}
	return out
}

// appendMutation writes the HeaderMutation.
func (f *forwardHead) appendMutation(out []byte) []byte {
	var scratch [2][512]byte
	for _, kv := range f.set {
		header := appendString(scratch[0][:0], fieldKey, kv[0])
		header = appendString(header, fieldRawValue, kv[1])
		option := appendBytes(scratch[1][:0], fieldOptionHeader, header)
		option = protowire.AppendTag(option, fieldAppendAction, protowire.VarintType)
		option = protowire.AppendVarint(option, uint64(corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD))
		out = appendBytes(out, fieldSetHeaders, option)
	}
	for _, name := range f.remove {
		out = appendString(out, fieldRemoveHeaders, name)
	}
	return out
}

// appendMetadata writes the field with the dynamic metadata.
func (f *forwardHead) appendMetadata(out []byte) []byte {
	var scratch [4][512]byte
	entries := scratch[0][:0]
	for _, kv := range f.metadata {
		value := appendString(scratch[1][:0], fieldStringValue, kv[1])
		entries = appendEntry(entries, scratch[2][:0], kv[0], value)
	}
	value := appendBytes(scratch[1][:0], fieldStructValue, entries)
	return appendBytes(out, fieldDynamicMetadata, appendEntry(scratch[2][:0], scratch[3][:0], envoy.Namespace, value))
}

// untouchedHead lets a request go on as it is.
func untouchedHead() *outbound {
	return &outbound{data: mem.BufferSlice{mem.SliceBuffer(appendBytes(nil, fieldHeadersResponse, nil))}}
}

// appendEntry writes one entry of a Struct; scratch is memory for the entry.
func appendEntry(out, scratch []byte, key string, value []byte) []byte {
	entry := appendString(scratch, fieldMapKey, key)
	entry = appendBytes(entry, fieldMapValue, value)
	return appendBytes(out, fieldStructFields, entry)
}

func appendString(b []byte, num protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), s)
}

func appendBytes(b []byte, num protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, num, protowire.BytesType), v)
}

// appendSize begins a field of n bytes.
func appendSize(b []byte, num protowire.Number, n int) []byte {
	b = protowire.AppendTag(b, num, protowire.BytesType)
	return protowire.AppendVarint(b, uint64(n)) //nolint:gosec // a size is not negative
}

// forwardBody sends a chunk back as it came: only its frame is written. The
// message takes the chunk over.
func forwardBody(chunk mem.Buffer, end bool) *outbound {
	return sendBack(fieldBodyAnswer, chunk, end)
}

// leaveResponse lets a part of an answer go on as it is. No Envoy should send one, see
// forward, but one whose response modes ask for it waits.
func leaveResponse(in *inbound, duplex bool) *outbound {
	field := protowire.Number(fieldResponseHeadersAnswer)
	switch {
	case in.kind == inboundResponseTrailers:
		field = fieldResponseTrailersAnswer
	case in.kind == inboundResponseBody && duplex:
		return sendBack(fieldResponseBodyAnswer, in.body, in.end)
	case in.kind == inboundResponseBody:
		in.free()
		field = fieldResponseBodyAnswer
	}
	return &outbound{data: mem.BufferSlice{mem.SliceBuffer(appendBytes(nil, field, nil))}}
}

func sendBack(field protowire.Number, chunk mem.Buffer, end bool) *outbound {
	n := chunk.Len()
	streamed := protowire.SizeTag(fieldStreamedBody) + protowire.SizeBytes(n)
	var tail []byte
	if end {
		tail = protowire.AppendVarint(protowire.AppendTag(nil, fieldStreamedEnd, protowire.VarintType), 1)
		streamed += len(tail)
	}
	mutation := protowire.SizeTag(fieldStreamedResponse) + protowire.SizeBytes(streamed)
	common := protowire.SizeTag(fieldBodyMutation) + protowire.SizeBytes(mutation)
	response := protowire.SizeTag(fieldCommonResponse) + protowire.SizeBytes(common)
	head := make([]byte, 0, 40)
	for _, part := range [...]struct {
		num  protowire.Number
		size int
	}{
		{field, response},
		{fieldCommonResponse, common},
		{fieldBodyMutation, mutation},
		{fieldStreamedResponse, streamed},
		{fieldStreamedBody, n},
	} {
		head = appendSize(head, part.num, part.size)
	}
	data := mem.BufferSlice{mem.SliceBuffer(head), chunk}
	if end {
		data = append(data, mem.SliceBuffer(tail))
	}
	return &outbound{data: data}
}

// forwardTrailers sends the request's trailers on as they are.
func forwardTrailers() *outbound {
	return &outbound{data: mem.BufferSlice{mem.SliceBuffer(appendBytes(nil, fieldTrailersResponse, nil))}}
}
