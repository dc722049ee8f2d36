// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/extproctest"
	"github.com/holdgate/holdgate/extproc/wire"
)

// recordingOthers remembers what it is told.
type recordingOthers struct {
	mu   sync.Mutex
	told []string
}

func (o *recordingOthers) note(s string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.told = append(o.told, s)
}

func (o *recordingOthers) Logged(e *wire.LogEntry)            { o.note("logged " + e.RequestID) }
func (o *recordingOthers) EnvoyGone(from string, _ time.Time) { o.note("gone " + from) }
func (o *recordingOthers) Claimed(id string)                  { o.note("claimed " + id) }

func (o *recordingOthers) took() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	told := o.told
	o.told = nil
	return told
}

// A process that is being replaced has its log entries from the next one: Envoy's log streams
// end, which is no sign that Envoy has ended.
func TestLogStreamsMoveToAnotherProcess(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		busy, end := r.logStream(t, envoy.LogEdge)
		defer end()
		idle, err := accesslogv3.NewAccessLogServiceClient(r.conn).StreamAccessLogs(t.Context())
		require.NoError(t, err)
		require.NoError(t, idle.Send(&accesslogv3.StreamAccessLogsMessage{Identifier: &accesslogv3.StreamAccessLogsMessage_Identifier{LogName: envoy.LogEdge}}))
		r.slots.up(engineA, 2)
		one, two := r.served(t), r.served(t)
		r.MoveLogs()
		elapse(100 * time.Millisecond)
		require.Equal(t, 2, r.logs.streams(), "they wait for the next message")
		busy(one, envoy.ModeNative)
		require.Equal(t, 1, r.logs.streams())
		elapse(logQuiet)
		require.Zero(t, r.logs.streams(), "or for a while")
		require.Equal(t, one, r.only(t).Request.ID)
		elapse(time.Hour)
		require.Equal(t, 1, r.slots.taken(), "Envoy still carries the other request")
		require.True(t, r.Logged(&wire.LogEntry{RequestID: two, Native: true, Status: 200}))
		require.False(t, r.Logged(&wire.LogEntry{RequestID: two, Native: true, Status: 200}))
		require.Zero(t, r.slots.taken())
		require.Len(t, r.records, 2)
		r.WaitForAll(t.Context())
	})
}

func TestAnEnvoyThatIsGoneIsGoneForAllProcesses(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		others := &recordingOthers{}
		r.d.Others = others
		_, end := r.logStream(t, envoy.LogEdge)
		end()
		elapse(envoyGone + time.Second)
		require.Equal(t, []string{"gone pid 9"}, others.took())
		r.slots.up(engineA, 1)
		r.served(t)
		r.EnvoyGone("pid 9", time.Now().Add(time.Second))
		require.Zero(t, r.slots.taken())
	})
}

// What this process does not know may be a request of the one before it.
func TestUnknownRequestsAreThoseOfOtherProcesses(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		others := &recordingOthers{}
		r.d.Others = others
		record, end := r.logStream(t, envoy.LogEdge)
		r.slots.up(engineA, 1)
		mine := r.served(t)
		record("another", envoy.ModeNative)
		record(mine, envoy.ModeNative)
		require.Equal(t, []string{"logged another"}, others.took())

		id := uuid.NewString()
		x := r.again(t, id, engineB, 100)
		requireServed(t, x, "0s", engineA)
		require.Equal(t, []string{"claimed " + id}, others.took())
		synctest.Wait()

		r.Claimed(id)
		require.Zero(t, r.slots.taken(), "it continues in another process")
		require.Len(t, r.records, 1, "which writes its record")
		r.Claimed("another")
		require.Equal(t, []string{"claimed another"}, others.took(), "the one before may have it")

		r.slots.down(engineA)
		held := uuid.NewString()
		hx := r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`, headerRequestID, held))
		r.Claimed(held)
		require.Equal(t, 1, r.InFlight(), "only what Envoy carries can come back from it")
		end()
		hx.Reset()
	})
}
