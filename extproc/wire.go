// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"errors"
	"iter"

	procfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Codec is the gRPC codec of the server: it reads ext_proc requests where they
// lie and sends body chunks back as the bytes that came, which saves a third of
// the server's time. Every other message goes through the usual codec.
func Codec() encoding.CodecV2 {
	return codec{CodecV2: encoding.GetCodecV2(grpcproto.Name)}
}

type codec struct{ encoding.CodecV2 }

// Marshal hands out the slices of an outbound message.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if out, ok := v.(*outbound); ok {
		return out.data, nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal reads the messages that Envoy sends for every request in place.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch m := v.(type) {
	case *inbound:
		return m.parse(data)
	case *logMessage:
		return m.parse(data)
	default:
		return c.CodecV2.Unmarshal(data, v)
	}
}

// buffers has a size for Envoy's 64 KiB chunks with their frame: the default
// pool would take 1 MiB for each.
var buffers = mem.NewTieredBufferPool(1<<10, 4<<10, 16<<10, 72<<10, 256<<10, 1<<20)

// outbound is an encoded ProcessingResponse. Sending it gives its buffers back.
type outbound struct{ data mem.BufferSlice }

// inboundKind is the sort of message that Envoy sent.
type inboundKind uint8

const (
	inboundOther inboundKind = iota
	inboundHeaders
	inboundBody
	inboundTrailers
	inboundResponseHeaders
	inboundResponseBody
	inboundResponseTrailers
)

// ofRequest says whether the message is a part of the request.
func (k inboundKind) ofRequest() bool { return k >= inboundHeaders && k <= inboundTrailers }

// inbound is a ProcessingRequest: what it carries stays in the buffer it came in.
type inbound struct {
	kind    inboundKind
	seen    bool // a field of the oneof was there
	end     bool
	headers headerBlock // of a headers message; lies in raw
	raw     mem.Buffer  // of a headers message
	// metadata is the metadata_context of a headers message; lies in raw.
	metadata []byte
	// duplexResponse says of the first message that chunks of the answer are to be sent
	// back, as those of the request are.
	duplexResponse bool

	body mem.Buffer // of a body message
	span span       // where the body lies in its message
}

type span struct{ from, to int }

// free gives the message's buffers back.
func (in *inbound) free() {
	if in.raw != nil {
		in.raw.Free()
	}
	if in.body != nil {
		in.body.Free()
	}
	*in = inbound{}
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

// parse reads data, which the caller frees, and keeps references to what it needs.
func (in *inbound) parse(data mem.BufferSlice) error {
	*in = inbound{}
	buf := data.MaterializeToBuffer(buffers)
	if err := in.scan(buf.ReadOnlyData()); err != nil {
		buf.Free()
		return err
	}
	switch in.kind {
	case inboundHeaders:
		in.raw = buf
	case inboundBody, inboundResponseBody:
		in.body = cut(buf, in.span)
	default:
		buf.Free()
	}
	if in.raw == nil {
		in.metadata, in.duplexResponse = nil, false
	}
	return nil
}

// cut keeps only a part of buf, without copying.
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

func (in *inbound) scan(all []byte) error {
	return fields(all, func(num protowire.Number, value []byte, _ uint64, at int) bool {
		if num == fieldMetadataContext {
			in.metadata = value
		}
		if num == fieldProtocolConfig {
			in.protocol(value)
		}
		if value == nil || num < fieldRequestHeaders || num > fieldResponseTrailers {
			return true
		}
		if in.seen {
			return false // one message is one thing; to merge two is not worth the code
		}
		in.seen = true
		switch num {
		case fieldRequestHeaders:
			in.kind = inboundHeaders
			return in.payload(value, at, fieldHeadersEnd)
		case fieldRequestBody:
			in.kind = inboundBody
			return in.payload(value, at, fieldBodyEnd)
		case fieldRequestTrailers:
			in.kind, in.end = inboundTrailers, true
		case fieldResponseHeaders:
			in.kind = inboundResponseHeaders
		case fieldResponseBody:
			in.kind = inboundResponseBody
			return in.payload(value, at, fieldBodyEnd)
		case fieldResponseTrailers:
			in.kind = inboundResponseTrailers
		}
		return true
	})
}

// protocol reads the ProtocolConfiguration of a first message.
func (in *inbound) protocol(msg []byte) {
	_ = fields(msg, func(num protowire.Number, _ []byte, mode uint64, _ int) bool {
		if num == fieldResponseBodyMode {
			in.duplexResponse = mode == uint64(procfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED)
		}
		return true
	})
}

// payload reads an HttpHeaders or HttpBody that lies at offset at of its message.
func (in *inbound) payload(msg []byte, at int, endField protowire.Number) bool {
	err := fields(msg, func(num protowire.Number, value []byte, flag uint64, offset int) bool {
		switch {
		case num == fieldPayload && value != nil:
			if in.kind == inboundHeaders && in.headers != nil {
				return false
			}
			in.headers = value
			in.span = span{from: at + offset, to: at + offset + len(value)}
		case num == endField && value == nil:
			in.end = flag != 0
		}
		return true
	})
	return err == nil
}

// fields calls f for every field of msg that has bytes or a varint: the one with
// its value, which is not nil, and the offset where it lies, the other with its
// number. It ends with errWire when msg is damaged or f says false.
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

// headerBlock is an encoded HeaderMap.
type headerBlock []byte

// all walks the headers in their order. Names are lower case, as Envoy sends
// them. A damaged block ends the walk early.
func (h headerBlock) all() iter.Seq2[[]byte, []byte] {
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
