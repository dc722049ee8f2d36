// SPDX-License-Identifier: Apache-2.0

package wire

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/holdgate/holdgate/envoy"
)

// Field numbers of the messages that are written by hand.
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
	fieldListValue              = 6 // Value.list_value
	fieldListValues             = 1 // ListValue.values
)

// ForwardHead is the answer to the headers of a request that Envoy is to carry.
type ForwardHead struct {
	Metadata HeaderList // dynamic metadata in envoy.Namespace
	Set      HeaderList
	Remove   []string
	Reroute  bool // Envoy must choose the route again, by the metadata
	// Picked are the addresses, separated by commas, to which a gateway is to send the request:
	// dynamic metadata in envoy.PickedNamespace; empty: none.
	Picked string
}

// Encode returns a HeadersResponse with the dynamic metadata.
func (f *ForwardHead) Encode() *Outbound {
	var scratch [2][512]byte
	common := f.appendCommon(scratch[1][:0], scratch[0][:0])
	response := appendBytes(scratch[0][:0], fieldCommonResponse, common)
	out := appendBytes(make([]byte, 0, 512), fieldHeadersResponse, response)
	return &Outbound{data: mem.BufferSlice{mem.SliceBuffer(f.appendMetadata(out))}}
}

// EncodeWith returns a HeadersResponse that replaces the body with the chunks, which have
// size bytes together. Sending the message frees the chunks.
func (f *ForwardHead) EncodeWith(chunks []mem.Buffer, size int64) *Outbound {
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
	return &Outbound{data: append(data, mem.SliceBuffer(f.appendMetadata(nil)))}
}

// appendCommon appends a CommonResponse without its body. The HeaderMutation is built in
// scratch.
func (f *ForwardHead) appendCommon(out, scratch []byte) []byte {
	out = appendBytes(out, fieldHeaderMutation, f.appendMutation(scratch))
	if f.Reroute {
		out = protowire.AppendVarint(protowire.AppendTag(out, fieldClearRouteCache, protowire.VarintType), 1)
	}
	return out
}

// appendMutation appends the HeaderMutation.
func (f *ForwardHead) appendMutation(out []byte) []byte {
	var scratch [2][512]byte
	for _, kv := range f.Set {
		header := appendString(scratch[0][:0], fieldKey, kv[0])
		header = appendString(header, fieldRawValue, kv[1])
		option := appendBytes(scratch[1][:0], fieldOptionHeader, header)
		option = protowire.AppendTag(option, fieldAppendAction, protowire.VarintType)
		option = protowire.AppendVarint(option, uint64(corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD))
		out = appendBytes(out, fieldSetHeaders, option)
	}
	for _, name := range f.Remove {
		out = appendString(out, fieldRemoveHeaders, name)
	}
	return out
}

// appendMetadata appends the field with the dynamic metadata.
func (f *ForwardHead) appendMetadata(out []byte) []byte {
	var scratch [4][512]byte
	entries := scratch[0][:0]
	for _, kv := range f.Metadata {
		value := appendString(scratch[1][:0], fieldStringValue, kv[1])
		entries = appendEntry(entries, scratch[2][:0], kv[0], value)
	}
	value := appendBytes(scratch[1][:0], fieldStructValue, entries)
	namespaces := appendEntry(scratch[2][:0], scratch[3][:0], envoy.Namespace, value)
	if f.Picked != "" {
		namespaces = f.appendPicked(namespaces)
	}
	return appendBytes(out, fieldDynamicMetadata, namespaces)
}

// appendPicked appends the entry of envoy.PickedNamespace.
func (f *ForwardHead) appendPicked(out []byte) []byte {
	var scratch [2][512]byte
	entry := appendEntry(scratch[0][:0], scratch[1][:0], envoy.PickedHeader, appendString(nil, fieldStringValue, f.Picked))
	return appendEntry(out, scratch[1][:0], envoy.PickedNamespace, appendBytes(nil, fieldStructValue, entry))
}

// PassWithout returns the answer that lets the headers of a request pass without one of them.
func PassWithout(name string) *Outbound {
	common := appendBytes(nil, fieldHeaderMutation, appendString(nil, fieldRemoveHeaders, name))
	return &Outbound{data: mem.BufferSlice{mem.SliceBuffer(appendBytes(nil, fieldHeadersResponse, appendBytes(nil, fieldCommonResponse, common)))}}
}

// PassHeaders returns the answer that lets the headers of a request pass unchanged.
func PassHeaders() *Outbound {
	return &Outbound{data: mem.BufferSlice{mem.SliceBuffer(appendBytes(nil, fieldHeadersResponse, nil))}}
}

// appendEntry appends one entry of a Struct, which is built in scratch.
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

// appendSize appends the tag and the size of a field of n bytes.
func appendSize(b []byte, num protowire.Number, n int) []byte {
	b = protowire.AppendTag(b, num, protowire.BytesType)
	return protowire.AppendVarint(b, uint64(n)) //nolint:gosec // a size is not negative
}

// ForwardBody returns the message that sends a chunk back unchanged: only its frame is
// encoded. Sending the message frees the chunk.
func ForwardBody(chunk mem.Buffer, end bool) *Outbound {
	return sendBack(fieldBodyAnswer, chunk, end)
}

// PassResponse returns the message that lets a part of an answer pass unchanged; in duplex
// mode, a chunk of the body is sent back. Only an Envoy whose response modes are not SKIP or
// NONE sends such parts and waits for this message.
func PassResponse(in *Inbound, duplex bool) *Outbound {
	field := protowire.Number(fieldResponseHeadersAnswer)
	switch {
	case in.Kind == ResponseTrailers:
		field = fieldResponseTrailersAnswer
	case in.Kind == ResponseBody && duplex:
		return sendBack(fieldResponseBodyAnswer, in.Body, in.End)
	case in.Kind == ResponseBody:
		in.Free()
		field = fieldResponseBodyAnswer
	}
	return &Outbound{data: mem.BufferSlice{mem.SliceBuffer(appendBytes(nil, field, nil))}}
}

// sendBack returns the message that sends a chunk of a body back.
func sendBack(field protowire.Number, chunk mem.Buffer, end bool) *Outbound {
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
	return &Outbound{data: data}
}

// ForwardTrailers returns the answer that lets the request's trailers pass unchanged.
func ForwardTrailers() *Outbound {
	return &Outbound{data: mem.BufferSlice{mem.SliceBuffer(appendBytes(nil, fieldTrailersResponse, nil))}}
}
