// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"net/netip"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/holdgate/holdgate/envoy"
)

// logMessage is a StreamAccessLogsMessage. Envoy sends one for each request, so
// only what is needed is read.
type logMessage struct {
	name    string // of the log; only in a stream's first message
	entries []logEntry
}

// logEntry is what Envoy knows of a request at its end.
type logEntry struct {
	requestID string
	streamID  string // Envoy's own name of the request
	status    int    // on the wire; 0: nothing was sent
	bytesIn   int64
	bytesOut  int64
	duration  time.Duration
	attempts  int
	upstream  netip.AddrPort // the last one; not valid when there was none
	source    netip.Addr     // the peer
	client    netip.Addr     // as Envoy found it, by what the peer says
	left      bool           // the client left
	// engineEnded: the engine had ended its answer, so that the client, which may have
	// left with its last event, missed nothing of it.
	engineEnded bool
	local       bool // we answered it ourselves
	native      bool // Envoy carried it; neither: the client left before Envoy had our answer
}

// Field numbers of envoy.service.accesslog.v3 and envoy.data.accesslog.v3.
const (
	logIdentifier     = 1
	logHTTPLogs       = 2
	logIdentifierName = 2
	logEntries        = 1
	entryCommon       = 1
	entryRequest      = 3
	entryResponse     = 4
	commonClient      = 2
	commonUpstreamEnd = 10 // time_to_last_upstream_rx_byte, once the answer has ended
	commonUpstream    = 13
	commonFlags       = 16
	commonMetadata    = 17
	commonSource      = 20
	commonDuration    = 23
	commonAttempts    = 24
	requestID         = 9
	requestBodyBytes  = 12
	responseCode      = 1
	responseBodyBytes = 3
	flagClientClosed  = 15
	flagClientReset   = 28
	wrapperValue      = 1
	durationSeconds   = 1
	durationNanos     = 2
	socketAddress     = 1
	socketHost        = 2
	socketPort        = 3
)

// parse reads data, which the caller frees.
func (m *logMessage) parse(data mem.BufferSlice) error {
	*m = logMessage{entries: m.entries[:0]}
	buf := data.MaterializeToBuffer(buffers)
	defer buf.Free()
	return fields(buf.ReadOnlyData(), func(num protowire.Number, value []byte, _ uint64, _ int) bool {
		switch num {
		case logIdentifier:
			return each(value, func(num protowire.Number, value []byte, _ uint64) {
				if num == logIdentifierName {
					m.name = string(value)
				}
			})
		case logHTTPLogs:
			return fields(value, func(num protowire.Number, value []byte, _ uint64, _ int) bool {
				if num != logEntries {
					return true
				}
				var e logEntry
				ok := e.parse(value)
				m.entries = append(m.entries, e)
				return ok
			}) == nil
		}
		return true
	})
}

// each is fields for readers that cannot fail.
func each(msg []byte, f func(num protowire.Number, value []byte, varint uint64)) bool {
	return fields(msg, func(num protowire.Number, value []byte, varint uint64, _ int) bool {
		f(num, value, varint)
		return true
	}) == nil
}

func (e *logEntry) parse(msg []byte) bool {
	return fields(msg, func(num protowire.Number, value []byte, _ uint64, _ int) bool {
		switch num {
		case entryCommon:
			return each(value, e.common)
		case entryRequest:
			return each(value, e.request)
		case entryResponse:
			return each(value, e.response)
		}
		return true
	}) == nil
}

func (e *logEntry) common(num protowire.Number, value []byte, varint uint64) {
	switch num {
	case commonUpstreamEnd:
		e.engineEnded = true
	case commonUpstream:
		e.upstream = addressOf(value)
	case commonClient:
		e.client = addressOf(value).Addr()
	case commonSource:
		e.source = addressOf(value).Addr()
	case commonDuration:
		each(value, func(num protowire.Number, _ []byte, n uint64) {
			switch num {
			case durationSeconds:
				e.duration += time.Duration(n) * time.Second //nolint:gosec // of one request
			case durationNanos:
				e.duration += time.Duration(n) //nolint:gosec // below a second
			}
		})
	case commonMetadata:
		eachUnder(value, envoy.Namespace, func(fields []byte) {
			mode := stringUnder(fields, envoy.ModeKey)
			e.local, e.native = mode == envoy.ModeLocal, mode == envoy.ModeNative
			e.streamID = stringUnder(fields, envoy.StreamKey)
		})
	case commonAttempts:
		e.attempts = int(varint) //nolint:gosec // a small count
	case commonFlags:
		each(value, func(num protowire.Number, _ []byte, set uint64) {
			if num == flagClientClosed || num == flagClientReset {
				e.left = e.left || set != 0
			}
		})
	}
}

// eachUnder calls f for the value under key of the map that is the first field of
// msg: Metadata.filter_metadata and Struct.fields.
func eachUnder(msg []byte, key string, f func(value []byte)) {
	each(msg, func(num protowire.Number, entry []byte, _ uint64) {
		if num != fieldStructFields {
			return
		}
		var name, value []byte
		each(entry, func(num protowire.Number, v []byte, _ uint64) {
			switch num {
			case fieldMapKey:
				name = v
			case fieldMapValue:
				value = v
			}
		})
		if string(name) == key {
			f(value)
		}
	})
}

// stringUnder is the text under a key of a Struct, empty without one.
func stringUnder(fields []byte, key string) (text string) {
	eachUnder(fields, key, func(value []byte) {
		each(value, func(num protowire.Number, v []byte, _ uint64) {
			if num == fieldStringValue {
				text = string(v)
			}
		})
	})
	return text
}

func (e *logEntry) request(num protowire.Number, value []byte, varint uint64) {
	switch num {
	case requestID:
		e.requestID = string(value)
	case requestBodyBytes:
		e.bytesIn = int64(varint) //nolint:gosec // a size
	}
}

func (e *logEntry) response(num protowire.Number, value []byte, varint uint64) {
	switch num {
	case responseCode:
		each(value, func(num protowire.Number, _ []byte, code uint64) {
			if num == wrapperValue {
				e.status = int(code) //nolint:gosec // an HTTP status
			}
		})
	case responseBodyBytes:
		e.bytesOut = int64(varint) //nolint:gosec // a size
	}
}

// addressOf reads a core.v3.Address; a pipe gives an address that is not valid.
func addressOf(msg []byte) netip.AddrPort {
	var host netip.Addr
	var port uint16
	each(msg, func(num protowire.Number, value []byte, _ uint64) {
		if num != socketAddress {
			return
		}
		each(value, func(num protowire.Number, value []byte, n uint64) {
			switch num {
			case socketHost:
				host, _ = netip.ParseAddr(string(value))
			case socketPort:
				port = uint16(n) //nolint:gosec // a port
			}
		})
	})
	if !host.IsValid() {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(host, port)
}
