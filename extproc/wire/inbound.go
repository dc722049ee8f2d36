// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"iter"

	procfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Kind is the sort of message that Envoy sent.
type Kind uint8

// The kinds.
const (
	Other Kind = iota
	RequestHeaders
	RequestBody
	RequestTrailers
	ResponseHeaders
	ResponseBody
	ResponseTrailers
)

// OfRequest reports whether the message is a part of the request.
func (k Kind) OfRequest() bool { return k >= RequestHeaders && k <= RequestTrailers }

// Inbound is a ProcessingRequest. Its contents stay in the buffer in which it was received.
type Inbound struct {
	Kind Kind
	End  bool // the last message of the request, or of the answer
	// Headers and Metadata, the metadata_context, are set in a headers message. They point
	// into raw.
	Headers  HeaderBlock
	Metadata []byte
	// DuplexResponse is set in the first message when chunks of the answer must be sent
	// back, as those of the request are.
	DuplexResponse bool
	Body           mem.Buffer // of a body message; nil: none

	raw  mem.Buffer // the whole headers message
	seen bool       // a field of the oneof was read
	span span       // the position of the body in its message
}

type span struct{ from, to int }

// Free frees the message's buffers. A second call does nothing.
func (in *Inbound) Free() {
	if in.raw != nil {
		in.raw.Free()
	}
	if in.Body != nil {
		in.Body.Free()
	}
	*in = Inbound{}
}

var errWire = errors.New("not an ext_proc request")

// Field numbers of envoy.service.ext_proc.v3 and envoy.config.core.v3.
const (
	fieldRequestHeaders   = 2
	fieldResponseHeaders  = 3
	fieldRequestBody      = 4
	fieldResponseBody     = 5
	fieldRequestTrailers  = 6
	fieldResponseTrailers = 7
	fieldMetadataContext  = 8
	fieldProtocolConfig   = 11
	fieldResponseBodyMode = 2 // ProtocolConfiguration.response_body_mode

	fieldPayload    = 1 // HttpHeaders.headers and HttpBody.body
	fieldHeadersEnd = 3
	fieldBodyEnd    = 2
	fieldHeader     = 1
	fieldKey        = 1
	fieldValue      = 2
	fieldRawValue   = 3
)

// parse decodes data, which the caller frees. It keeps references to the parts it needs.
func (in *Inbound) parse(data mem.BufferSlice) error {
	*in = Inbound{}
	buf := data.MaterializeToBuffer(Buffers)
	if err := in.scan(buf.ReadOnlyData()); err != nil {
		buf.Free()
		return err
	}
	switch in.Kind {
	case RequestHeaders:
		in.raw = buf
	case RequestBody, ResponseBody:
		in.Body = cut(buf, in.span)
	default:
		buf.Free()
	}
	if in.raw == nil {
		in.Metadata, in.DuplexResponse = nil, false
	}
	return nil
}

// cut returns a part of buf without copying it, and frees the rest.
func cut(buf mem.Buffer, s span) mem.Buffer {
	if s.from == s.to {
		buf.Free()
		return mem.SliceBuffer(nil)
	}
	before, rest := mem.SplitUnsafe(buf, s.from)
	before.Free()
	part, after := mem.SplitUnsafe(rest, s.to-s.from)
	after.Free()
	return part
}

func (in *Inbound) scan(all []byte) error {
	return fields(all, func(num protowire.Number, value []byte, _ uint64, at int) bool {
		if num == fieldMetadataContext {
			in.Metadata = value
		}
		if num == fieldProtocolConfig {
			in.protocol(value)
		}
		if value == nil || num < fieldRequestHeaders || num > fieldResponseTrailers {
			return true
		}
		if in.seen {
			return false // two fields of the oneof would have to be merged: Envoy sends one
		}
		in.seen = true
		switch num {
		case fieldRequestHeaders:
			in.Kind = RequestHeaders
			return in.payload(value, at, fieldHeadersEnd)
		case fieldRequestBody:
			in.Kind = RequestBody
			return in.payload(value, at, fieldBodyEnd)
		case fieldRequestTrailers:
			in.Kind, in.End = RequestTrailers, true
		case fieldResponseHeaders:
			in.Kind = ResponseHeaders
		case fieldResponseBody:
			in.Kind = ResponseBody
			return in.payload(value, at, fieldBodyEnd)
		case fieldResponseTrailers:
			in.Kind = ResponseTrailers
		}
		return true
	})
}

// protocol decodes the ProtocolConfiguration of a first message.
func (in *Inbound) protocol(msg []byte) {
	_ = fields(msg, func(num protowire.Number, _ []byte, mode uint64, _ int) bool {
		if num == fieldResponseBodyMode {
			in.DuplexResponse = mode == uint64(procfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED)
		}
		return true
	})
}

// payload decodes an HttpHeaders or HttpBody, which is at offset at of the whole message.
func (in *Inbound) payload(msg []byte, at int, endField protowire.Number) bool {
	err := fields(msg, func(num protowire.Number, value []byte, flag uint64, offset int) bool {
		switch {
		case num == fieldPayload && value != nil:
			if in.Kind == RequestHeaders && in.Headers != nil {
				return false
			}
			in.Headers = value
			in.span = span{from: at + offset, to: at + offset + len(value)}
		case num == endField && value == nil:
			in.End = flag != 0
		}
		return true
	})
	return err == nil
}

// fields calls f for every field of msg that is bytes or a varint. For bytes, value is not
// nil, and at is its offset in msg. It returns errWire when msg is damaged or f returns
// false.
func fields(msg []byte, f func(num protowire.Number, value []byte, varint uint64, at int) bool) error {
	for rest := msg; len(rest) > 0; {
		num, typ, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return errWire
		}
		rest = rest[n:]
		var value []byte
		var varint uint64
		switch typ {
		case protowire.BytesType:
			value, n = protowire.ConsumeBytes(rest)
		case protowire.VarintType:
			varint, n = protowire.ConsumeVarint(rest)
		default:
			if n = protowire.ConsumeFieldValue(num, typ, rest); n >= 0 {
				rest = rest[n:]
				continue
			}
		}
		if n < 0 {
			return errWire
		}
		rest = rest[n:]
		if !f(num, value, varint, len(msg)-len(rest)-len(value)) {
			return errWire
		}
	}
	return nil
}

// HeaderBlock is an encoded HeaderMap.
type HeaderBlock []byte

// All yields the names and values of the headers, in their order. Envoy sends names in lower
// case. It ends early where the block is damaged.
func (h HeaderBlock) All() iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		_ = fields(h, func(num protowire.Number, msg []byte, _ uint64, _ int) bool {
			if num != fieldHeader || msg == nil {
				return true
			}
			var name, value, raw []byte
			err := fields(msg, func(num protowire.Number, v []byte, _ uint64, _ int) bool {
				switch {
				case v == nil:
				case num == fieldKey:
					name = v
				case num == fieldValue:
					value = v
				case num == fieldRawValue:
					raw = v
				}
				return true
			})
			// Envoy fills one of the two.
			if len(raw) > 0 {
				value = raw
			}
			return err == nil && yield(name, value)
		})
	}
}
