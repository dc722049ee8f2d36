// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"bytes"
	"encoding/binary"
	"testing"

	dataaccesslogv3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/extproctest"
)

// connection is what a client sends on an HTTP/2 connection.
type connection struct {
	bytes.Buffer
	framer *http2.Framer
}

func newConnection() *connection {
	c := &connection{}
	c.WriteString(http2.ClientPreface)
	c.framer = http2.NewFramer(&c.Buffer, nil)
	_ = c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
	return c
}

// send sends a gRPC message on a stream, in frames of at most n bytes.
func (c *connection) send(stream uint32, m proto.Message, n int) {
	text, _ := proto.Marshal(m)
	text = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(text))), text...)
	for len(text) > 0 {
		part := text[:min(n, len(text))]
		_ = c.framer.WriteData(stream, false, part)
		text = text[len(part):]
	}
}

func logMessage(name string, ids ...string) *accesslogv3.StreamAccessLogsMessage {
	m := &accesslogv3.StreamAccessLogsMessage{}
	if name != "" {
		m.Identifier = &accesslogv3.StreamAccessLogsMessage_Identifier{LogName: name}
	}
	entries := &accesslogv3.StreamAccessLogsMessage_HTTPAccessLogEntries{}
	for _, id := range ids {
		entries.LogEntry = append(entries.LogEntry, &dataaccesslogv3.HTTPAccessLogEntry{
			Request:          &dataaccesslogv3.HTTPRequestProperties{RequestId: id},
			CommonProperties: &dataaccesslogv3.AccessLogCommon{Metadata: extproctest.ModeMetadata(envoy.ModeNative)},
		})
	}
	m.LogEntries = &accesslogv3.StreamAccessLogsMessage_HttpLogs{HttpLogs: entries}
	return m
}

// Whatever the pieces in which a connection is read, the entries that come while the streams
// move are handled.
func TestATapReadsLogStreamsThatMove(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		others := &recordingOthers{}
		s := New(Options{MaxRequestBytes: 1, MaxBodyBytesTotal: 4}, Deps{Others: others})
		size := rapid.IntRange(1, 40).Draw(t, "frame")
		c := newConnection()
		c.send(1, logMessage(envoy.LogEdge, "before"), size)
		c.send(3, logMessage("another log", "before"), size)
		_ = c.framer.WritePing(false, [8]byte{})
		c.send(1, logMessage("", "before"), size)
		first := bytes.Clone(c.Bytes())
		c.Reset()
		c.send(1, logMessage("", "a", "b"), size)
		c.send(3, logMessage("", "not the edge's"), size)
		_ = c.framer.WriteWindowUpdate(0, 100)
		c.send(1, logMessage("", "c"), size)
		c.send(5, logMessage(envoy.LogEdge, "d"), size)
		tap := s.NewTap()
		read := func(p []byte) {
			for len(p) > 0 {
				n := min(rapid.IntRange(1, 60).Draw(t, "piece"), len(p))
				tap.Read(p[:n])
				p = p[n:]
			}
		}
		read(first)
		require.Empty(t, others.took())
		require.False(t, tap.Drains())
		s.MoveLogs()
		require.True(t, tap.Drains())
		read(c.Bytes())
		require.Equal(t, []string{"logged a", "logged b", "logged c", "logged d"}, others.took())
	})
}

// A connection with requests is not read along.
func TestATapLeavesOtherConnectionsAlone(t *testing.T) {
	t.Parallel()
	s := New(Options{MaxRequestBytes: 1, MaxBodyBytesTotal: 4}, Deps{})
	c := newConnection()
	c.send(1, extproctest.RequestHeaders(false, ":method", "POST", ":path", chatPath), 1<<14)
	tap := s.NewTap()
	tap.Read(c.Bytes())
	require.True(t, tap.off)
	s.MoveLogs()
	require.False(t, tap.Drains())
}

func FuzzTap(f *testing.F) {
	c := newConnection()
	c.send(1, logMessage(envoy.LogEdge, "a"), 30)
	f.Add(c.Bytes())
	f.Fuzz(func(_ *testing.T, p []byte) {
		s := New(Options{MaxRequestBytes: 1, MaxBodyBytesTotal: 4}, Deps{})
		s.MoveLogs()
		tap := s.NewTap()
		tap.Read([]byte(http2.ClientPreface))
		tap.Read(p)
	})
}
