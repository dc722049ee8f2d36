// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"net/netip"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	dataaccesslogv3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/holdgate/holdgate/envoy"
)

func address(host string, port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}

func logged(name string, entries ...*dataaccesslogv3.HTTPAccessLogEntry) *accesslogv3.StreamAccessLogsMessage {
	m := &accesslogv3.StreamAccessLogsMessage{LogEntries: &accesslogv3.StreamAccessLogsMessage_HttpLogs{
		HttpLogs: &accesslogv3.StreamAccessLogsMessage_HTTPAccessLogEntries{LogEntry: entries},
	}}
	if name != "" {
		m.Identifier = &accesslogv3.StreamAccessLogsMessage_Identifier{LogName: name, Node: &corev3.Node{Id: "node"}}
	}
	return m
}

func logEntryOf(change func(*dataaccesslogv3.HTTPAccessLogEntry)) *dataaccesslogv3.HTTPAccessLogEntry {
	e := &dataaccesslogv3.HTTPAccessLogEntry{
		CommonProperties: &dataaccesslogv3.AccessLogCommon{
			DownstreamRemoteAddress:       address("192.0.2.1", 1),
			DownstreamDirectRemoteAddress: address("192.0.2.9", 5555),
			UpstreamRemoteAddress:         address("10.0.0.1", 8000),
			Duration:                      &durationpb.Duration{Seconds: 61, Nanos: 500},
			UpstreamRequestAttemptCount:   2,
			ResponseFlags:                 &dataaccesslogv3.ResponseFlags{UpstreamConnectionFailure: true},
			Metadata:                      modeMetadata(envoy.ModeNative),
			UpstreamCluster:               "x",
		},
		ProtocolVersion: dataaccesslogv3.HTTPAccessLogEntry_HTTP2,
		Request: &dataaccesslogv3.HTTPRequestProperties{
			RequestId: "id", RequestBodyBytes: 1 << 40, Path: "/v1/x", RequestHeaders: map[string]string{"a": "b"},
		},
		Response: &dataaccesslogv3.HTTPResponseProperties{
			ResponseCode: wrapperspb.UInt32(429), ResponseBodyBytes: 77, ResponseCodeDetails: "via_upstream",
		},
	}
	if change != nil {
		change(e)
	}
	return e
}

func parseLog(t *testing.T, m proto.Message, into *logMessage) {
	t.Helper()
	data, err := proto.Marshal(m)
	require.NoError(t, err)
	require.NoError(t, Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, into))
}

func TestLogRecords(t *testing.T) {
	t.Parallel()
	usual := logEntry{
		requestID: "id", status: 429, bytesIn: 1 << 40, bytesOut: 77, duration: 61*time.Second + 500, attempts: 2,
		upstream: netip.MustParseAddrPort("10.0.0.1:8000"), source: netip.MustParseAddr("192.0.2.9"), client: netip.MustParseAddr("192.0.2.1"), native: true,
	}
	for name, c := range map[string]struct {
		change func(*dataaccesslogv3.HTTPAccessLogEntry)
		want   func(*logEntry)
	}{
		"the engine had ended its answer": {
			func(e *dataaccesslogv3.HTTPAccessLogEntry) {
				e.CommonProperties.TimeToLastUpstreamRxByte = &durationpb.Duration{}
			},
			func(e *logEntry) { e.engineEnded = true },
		},
		"usual": {nil, func(*logEntry) {}},
		"client left": {
			func(e *dataaccesslogv3.HTTPAccessLogEntry) {
				e.CommonProperties.ResponseFlags = &dataaccesslogv3.ResponseFlags{DownstreamConnectionTermination: true, NoRouteFound: true}
			},
			func(e *logEntry) { e.left = true },
		},
		"client reset": {
			func(e *dataaccesslogv3.HTTPAccessLogEntry) {
				e.CommonProperties.ResponseFlags = &dataaccesslogv3.ResponseFlags{DownstreamRemoteReset: true}
			},
			func(e *logEntry) { e.left = true },
		},
		"ours": {
			func(e *dataaccesslogv3.HTTPAccessLogEntry) {
				e.CommonProperties.Metadata = modeMetadata(envoy.ModeLocal)
			},
			func(e *logEntry) { e.local, e.native = true, false },
		},
		"somebody else's metadata": {
			func(e *dataaccesslogv3.HTTPAccessLogEntry) {
				m := modeMetadata(envoy.ModeLocal)
				all := m.GetFilterMetadata()
				all["other"] = all[envoy.Namespace]
				delete(all, envoy.Namespace)
				e.CommonProperties.Metadata = m
			},
			func(e *logEntry) { e.native = false },
		},
		"no upstream": {
			func(e *dataaccesslogv3.HTTPAccessLogEntry) { e.CommonProperties.UpstreamRemoteAddress = nil },
			func(e *logEntry) { e.upstream = netip.AddrPort{} },
		},
		"an upstream behind a unix socket": {
			func(e *dataaccesslogv3.HTTPAccessLogEntry) {
				e.CommonProperties.UpstreamRemoteAddress = &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: "/x"}}}
			},
			func(e *logEntry) { e.upstream = netip.AddrPort{} },
		},
		"IPv6": {
			func(e *dataaccesslogv3.HTTPAccessLogEntry) {
				e.CommonProperties.UpstreamRemoteAddress = address("fd00::1", 65535)
			},
			func(e *logEntry) { e.upstream = netip.MustParseAddrPort("[fd00::1]:65535") },
		},
		"nothing sent": {
			func(e *dataaccesslogv3.HTTPAccessLogEntry) { e.Response = nil },
			func(e *logEntry) { e.status, e.bytesOut = 0, 0 },
		},
		"nothing at all": {
			func(e *dataaccesslogv3.HTTPAccessLogEntry) { proto.Reset(e) },
			func(e *logEntry) { *e = logEntry{} },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := usual
			c.want(&want)
			var m logMessage
			parseLog(t, logged("edge", logEntryOf(c.change)), &m)
			require.Equal(t, logMessage{name: "edge", entries: []logEntry{want}}, m)
		})
	}
}

// The same memory is used for every message of a stream.
func TestALogMessageForgetsTheOneBefore(t *testing.T) {
	t.Parallel()
	var m logMessage
	parseLog(t, logged("edge", logEntryOf(nil), logEntryOf(nil)), &m)
	require.Len(t, m.entries, 2)
	parseLog(t, logged("", &dataaccesslogv3.HTTPAccessLogEntry{Request: &dataaccesslogv3.HTTPRequestProperties{RequestId: "b"}}), &m)
	require.Empty(t, m.name)
	require.Equal(t, []logEntry{{requestID: "b"}}, m.entries)
	parseLog(t, logged(""), &m)
	require.Empty(t, m.entries)
	parseLog(t, &accesslogv3.StreamAccessLogsMessage{LogEntries: &accesslogv3.StreamAccessLogsMessage_TcpLogs{
		TcpLogs: &accesslogv3.StreamAccessLogsMessage_TCPAccessLogEntries{LogEntry: []*dataaccesslogv3.TCPAccessLogEntry{{}}},
	}}, &m)
	require.Empty(t, m.entries)
}

func FuzzLogMessage(f *testing.F) {
	data, err := proto.Marshal(logged("edge", logEntryOf(nil), logEntryOf(nil)))
	require.NoError(f, err)
	f.Add(data)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		var got logMessage
		parseErr := got.parse(mem.BufferSlice{mem.SliceBuffer(data)})
		m := &accesslogv3.StreamAccessLogsMessage{}
		if (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, m) != nil {
			return
		}
		require.NoError(t, parseErr, "what is a message is read")
		// In its usual form: no field stands twice or has another type.
		usual, err := proto.Marshal(m)
		require.NoError(t, err)
		require.NoError(t, got.parse(mem.BufferSlice{mem.SliceBuffer(usual)}))
		require.Equal(t, m.GetIdentifier().GetLogName(), got.name)
		require.Len(t, got.entries, len(m.GetHttpLogs().GetLogEntry()))
		for i, e := range m.GetHttpLogs().GetLogEntry() {
			require.Equal(t, e.GetRequest().GetRequestId(), got.entries[i].requestID)
			require.Equal(t, int(e.GetResponse().GetResponseCode().GetValue()), got.entries[i].status)
			require.Equal(t, int64(e.GetResponse().GetResponseBodyBytes()), got.entries[i].bytesOut)
			f := e.GetCommonProperties().GetResponseFlags()
			require.Equal(t, f.GetDownstreamConnectionTermination() || f.GetDownstreamRemoteReset(), got.entries[i].left)
			ours := e.GetCommonProperties().GetMetadata().GetFilterMetadata()[envoy.Namespace].GetFields()[envoy.ModeKey]
			require.Equal(t, ours.GetStringValue() == envoy.ModeLocal, got.entries[i].local)
			require.Equal(t, ours.GetStringValue() == envoy.ModeNative, got.entries[i].native)
		}
	})
}
