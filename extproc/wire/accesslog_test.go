// SPDX-License-Identifier: Apache-2.0

package wire

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

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/extproctest"
)

func parseLog(t *testing.T, m proto.Message, into *LogMessage) {
	t.Helper()
	data, err := proto.Marshal(m)
	require.NoError(t, err)
	require.NoError(t, Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, into))
}

func TestTheNeededFieldsOfALogEntryAreRead(t *testing.T) {
	t.Parallel()
	usual := LogEntry{
		RequestID: "id", Status: 429, BytesIn: 1 << 40, BytesOut: 77, Duration: 61*time.Second + 500, Attempts: 2,
		Upstream: netip.MustParseAddrPort("10.0.0.1:8000"), Source: netip.MustParseAddr("192.0.2.9"), Client: netip.MustParseAddr("192.0.2.1"), Native: true,
	}
	for name, c := range map[string]struct {
		change func(*dataaccesslogv3.HTTPAccessLogEntry)
		want   func(*LogEntry)
	}{
		"the engine had ended its answer": {
			func(e *dataaccesslogv3.HTTPAccessLogEntry) {
				e.CommonProperties.TimeToLastUpstreamRxByte = &durationpb.Duration{}
			},
			func(e *LogEntry) { e.EngineEnded = true },
		},
		"usual": {nil, func(*LogEntry) {}},
		"client left": {
			func(e *dataaccesslogv3.HTTPAccessLogEntry) {
				e.CommonProperties.ResponseFlags = &dataaccesslogv3.ResponseFlags{DownstreamConnectionTermination: true, NoRouteFound: true}
			},
			func(e *LogEntry) { e.Left = true },
		},
		"client reset": {
			func(e *dataaccesslogv3.HTTPAccessLogEntry) {
				e.CommonProperties.ResponseFlags = &dataaccesslogv3.ResponseFlags{DownstreamRemoteReset: true}
			},
			func(e *LogEntry) { e.Left = true },
		},
		"ours": {
			func(e *dataaccesslogv3.HTTPAccessLogEntry) {
				e.CommonProperties.Metadata = extproctest.ModeMetadata(envoy.ModeLocal)
			},
			func(e *LogEntry) { e.Local, e.Native = true, false },
		},
		"somebody else's metadata": {
			func(e *dataaccesslogv3.HTTPAccessLogEntry) {
				m := extproctest.ModeMetadata(envoy.ModeLocal)
				all := m.GetFilterMetadata()
				all["other"] = all[envoy.Namespace]
				delete(all, envoy.Namespace)
				e.CommonProperties.Metadata = m
			},
			func(e *LogEntry) { e.Native = false },
		},
		"no upstream": {
			func(e *dataaccesslogv3.HTTPAccessLogEntry) { e.CommonProperties.UpstreamRemoteAddress = nil },
			func(e *LogEntry) { e.Upstream = netip.AddrPort{} },
		},
		"an upstream behind a unix socket": {
			func(e *dataaccesslogv3.HTTPAccessLogEntry) {
				e.CommonProperties.UpstreamRemoteAddress = &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: "/x"}}}
			},
			func(e *LogEntry) { e.Upstream = netip.AddrPort{} },
		},
		"IPv6": {
			func(e *dataaccesslogv3.HTTPAccessLogEntry) {
				e.CommonProperties.UpstreamRemoteAddress = extproctest.Address("fd00::1", 65535)
			},
			func(e *LogEntry) { e.Upstream = netip.MustParseAddrPort("[fd00::1]:65535") },
		},
		"nothing sent": {
			func(e *dataaccesslogv3.HTTPAccessLogEntry) { e.Response = nil },
			func(e *LogEntry) { e.Status, e.BytesOut = 0, 0 },
		},
		"nothing at all": {
			func(e *dataaccesslogv3.HTTPAccessLogEntry) { proto.Reset(e) },
			func(e *LogEntry) { *e = LogEntry{} },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := usual
			c.want(&want)
			var m LogMessage
			parseLog(t, extproctest.Logged("edge", extproctest.LogEntryOf(c.change)), &m)
			require.Equal(t, LogMessage{Name: "edge", Entries: []LogEntry{want}}, m)
		})
	}
}

// The same memory is used for every message of a stream.
func TestALogMessageForgetsTheOneBefore(t *testing.T) {
	t.Parallel()
	var m LogMessage
	parseLog(t, extproctest.Logged("edge", extproctest.LogEntryOf(nil), extproctest.LogEntryOf(nil)), &m)
	require.Len(t, m.Entries, 2)
	parseLog(t, extproctest.Logged("", &dataaccesslogv3.HTTPAccessLogEntry{Request: &dataaccesslogv3.HTTPRequestProperties{RequestId: "b"}}), &m)
	require.Empty(t, m.Name)
	require.Equal(t, []LogEntry{{RequestID: "b"}}, m.Entries)
	parseLog(t, extproctest.Logged(""), &m)
	require.Empty(t, m.Entries)
	parseLog(t, &accesslogv3.StreamAccessLogsMessage{LogEntries: &accesslogv3.StreamAccessLogsMessage_TcpLogs{
		TcpLogs: &accesslogv3.StreamAccessLogsMessage_TCPAccessLogEntries{LogEntry: []*dataaccesslogv3.TCPAccessLogEntry{{}}},
	}}, &m)
	require.Empty(t, m.Entries)
}

func FuzzLogMessage(f *testing.F) {
	data, err := proto.Marshal(extproctest.Logged("edge", extproctest.LogEntryOf(nil), extproctest.LogEntryOf(nil)))
	require.NoError(f, err)
	f.Add(data)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		var got LogMessage
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
		require.Equal(t, m.GetIdentifier().GetLogName(), got.Name)
		require.Len(t, got.Entries, len(m.GetHttpLogs().GetLogEntry()))
		for i, e := range m.GetHttpLogs().GetLogEntry() {
			require.Equal(t, e.GetRequest().GetRequestId(), got.Entries[i].RequestID)
			require.Equal(t, int(e.GetResponse().GetResponseCode().GetValue()), got.Entries[i].Status)
			require.Equal(t, int64(e.GetResponse().GetResponseBodyBytes()), got.Entries[i].BytesOut)
			f := e.GetCommonProperties().GetResponseFlags()
			require.Equal(t, f.GetDownstreamConnectionTermination() || f.GetDownstreamRemoteReset(), got.Entries[i].Left)
			ours := e.GetCommonProperties().GetMetadata().GetFilterMetadata()[envoy.Namespace].GetFields()[envoy.ModeKey]
			require.Equal(t, ours.GetStringValue() == envoy.ModeLocal, got.Entries[i].Local)
			require.Equal(t, ours.GetStringValue() == envoy.ModeNative, got.Entries[i].Native)
		}
	})
}
