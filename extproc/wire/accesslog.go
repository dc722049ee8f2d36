// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"net/netip"
	"slices"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/holdgate/holdgate/envoy"
)

// LogMessage has the parts of a StreamAccessLogsMessage that are read. Envoy sends one for
// each request.
type LogMessage struct {
	Name    string // of the log; only in a stream's first message
	Entries []LogEntry
}

// Tells reports whether an entry has the router's metadata.
func (m *LogMessage) Tells() bool {
	return slices.ContainsFunc(m.Entries, func(e LogEntry) bool { return e.Local || e.Native })
}

// LogEntry is Envoy's record of a request that has ended.
type LogEntry struct {
	RequestID string
	StreamID  string // Envoy's name of the request
	Status    int    // that the client got; 0: none
	BytesIn   int64
	BytesOut  int64
	Duration  time.Duration
	Attempts  int
	Upstream  netip.AddrPort // the last one; not valid when there was none
	Source    netip.Addr     // the peer of the connection
	Client    netip.Addr     // the client, which Envoy found behind proxies
	Left      bool           // the client left before the end of the answer
	// EngineEnded: the engine had ended its answer. A client that then left has received
	// the whole answer.
	EngineEnded bool
	// Local: the router answered the request, or it is one of the relay's. Native: Envoy
	// carried it. Neither: the client left before Envoy had a message from the router.
	Local, Native bool
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

// parse decodes data, which the caller frees.
func (m *LogMessage) parse(data mem.BufferSlice) error {
	*m = LogMessage{Entries: m.Entries[:0]}
	buf := data.MaterializeToBuffer(Buffers)
	defer buf.Free()
	return fields(buf.ReadOnlyData(), func(num protowire.Number, value []byte, _ uint64, _ int) bool {
		switch num {
		case logIdentifier:
			return each(value, func(num protowire.Number, value []byte, _ uint64) {
				if num == logIdentifierName {
					m.Name = string(value)
				}
			})
		case logHTTPLogs:
			return fields(value, func(num protowire.Number, value []byte, _ uint64, _ int) bool {
				if num != logEntries {
					return true
				}
				var e LogEntry
				ok := e.parse(value)
				m.Entries = append(m.Entries, e)
				return ok
			}) == nil
		}
		return true
	})
}

// each calls f for every field of msg, as fields does. It returns false when msg is damaged.
func each(msg []byte, f func(num protowire.Number, value []byte, varint uint64)) bool {
	return fields(msg, func(num protowire.Number, value []byte, varint uint64, _ int) bool {
		f(num, value, varint)
		return true
	}) == nil
}

func (e *LogEntry) parse(msg []byte) bool {
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

func (e *LogEntry) common(num protowire.Number, value []byte, varint uint64) {
	switch num {
	case commonUpstreamEnd:
		e.EngineEnded = true
	case commonUpstream:
		e.Upstream = addressOf(value)
	case commonClient:
		e.Client = addressOf(value).Addr()
	case commonSource:
		e.Source = addressOf(value).Addr()
	case commonDuration:
		each(value, func(num protowire.Number, _ []byte, n uint64) {
			switch num {
			case durationSeconds:
				e.Duration += time.Duration(n) * time.Second //nolint:gosec // of one request
			case durationNanos:
				e.Duration += time.Duration(n) //nolint:gosec // below a second
			}
		})
	case commonMetadata:
		eachUnder(value, envoy.Namespace, func(fields []byte) {
			mode := stringUnder(fields, envoy.ModeKey)
			e.Local, e.Native = mode == envoy.ModeLocal || mode == envoy.ModeRelayed, mode == envoy.ModeNative
			e.StreamID = stringUnder(fields, envoy.StreamKey)
		})
	case commonAttempts:
		e.Attempts = int(varint) //nolint:gosec // a small count
	case commonFlags:
		each(value, func(num protowire.Number, _ []byte, set uint64) {
			if num == flagClientClosed || num == flagClientReset {
				e.Left = e.Left || set != 0
			}
		})
	}
}

func (e *LogEntry) request(num protowire.Number, value []byte, varint uint64) {
	switch num {
	case requestID:
		e.RequestID = string(value)
	case requestBodyBytes:
		e.BytesIn = int64(varint) //nolint:gosec // a size
	}
}

func (e *LogEntry) response(num protowire.Number, value []byte, varint uint64) {
	switch num {
	case responseCode:
		each(value, func(num protowire.Number, _ []byte, code uint64) {
			if num == wrapperValue {
				e.Status = int(code) //nolint:gosec // an HTTP status
			}
		})
	case responseBodyBytes:
		e.BytesOut = int64(varint) //nolint:gosec // a size
	}
}

// addressOf decodes a core.v3.Address. It returns the zero value for a unix socket.
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
