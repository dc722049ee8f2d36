// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/extproctest"
	"github.com/holdgate/holdgate/extproc/wire"
	"github.com/holdgate/holdgate/holdstate"
)

const lookEvery = 5 * time.Second

// looked is what one Envoy with one log stream says it carries, all of it to engineA.
func looked(edge, engine int) Look {
	l := Look{At: time.Now()}
	l.Edge, l.Logs, l.To = edge, 1, map[string]int{engineA: engine}
	return l
}

// twice compares two looks that see the same.
func (r *rig) twice(edge, engine int) {
	first := looked(edge, engine)
	elapse(lookEvery)
	r.Correct(first, looked(edge, engine))
}

func TestTheSlotOfALostRecordIsGivenBack(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		record, end := r.logStream(t, envoy.LogEdge)
		defer end()
		r.slots.up(engineA, 2)
		first := r.served(t)
		elapse(time.Millisecond) // the older one is given back first
		r.served(t)
		elapse(settle + time.Second)
		require.True(t, r.Carries(time.Now().Add(-settle)))
		r.twice(1, 1)
		require.Equal(t, 1, r.slots.taken())
		require.Equal(t, 1, r.InFlight())
		r.twice(1, 1)
		require.Equal(t, 1, r.slots.taken(), "once is enough")
		r.noRecord(t)

		// It was the other one's record that is lost.
		record(first, envoy.ModeNative)
		require.Empty(t, r.only(t).ErrorCode)
		require.Equal(t, 1, r.slots.taken())
		r.twice(1, 1)
		require.Equal(t, 1, r.slots.taken())
		r.twice(0, 0)
		require.Zero(t, r.slots.taken())
		require.Len(t, r.records, 2)
		require.Equal(t, CodeRecordLost, r.records[1].ErrorCode)
		require.Zero(t, r.records[1].Status)
		require.Equal(t, VerdictServe, r.records[1].Verdict)
		require.EqualValues(t, 2, r.freed.Load())
	})
}

func TestNothingThatEnvoyMayCarryIsCorrected(t *testing.T) {
	t.Parallel()
	for name, correct := range map[string]func(r *rig){
		"it is there":              func(r *rig) { elapse(settle + 1); r.twice(1, 1) },
		"it was there":             func(r *rig) { elapse(settle + 1); l := looked(1, 1); elapse(lookEvery); r.Correct(l, looked(0, 0)) },
		"it came back":             func(r *rig) { elapse(settle + 1); l := looked(0, 0); elapse(lookEvery); r.Correct(l, looked(1, 1)) },
		"it began a moment before": func(r *rig) { elapse(settle); r.twice(0, 0) },
		"another Envoy calls": func(r *rig) {
			_, end := r.logStream(r.t, envoy.LogEdge)
			defer end()
			elapse(settle + 1)
			r.twice(0, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				record, end := r.logStream(r.t, envoy.LogEdge)
				defer end()
				r.slots.up(engineA, 1)
				id := r.served(r.t)
				correct(r)
				require.Equal(r.t, 1, r.slots.taken())
				r.noRecord(r.t)
				record(id, envoy.ModeNative)
				require.Empty(r.t, r.only(r.t).ErrorCode)
			})
		})
	}
}

// The request of a client that reads slowly is still at the edge when the engine has
// answered it.
func TestASlowClientKeepsItsRecordAndNoSlot(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		record, end := r.logStream(t, envoy.LogEdge)
		defer end()
		r.slots.up(engineA, 1)
		id := r.served(t)
		elapse(settle + 1)
		r.twice(1, 0)
		require.Zero(t, r.slots.taken())
		record(id, envoy.ModeNative)
		require.Empty(t, r.only(t).ErrorCode)
	})
}

// A request that waits here is at the edge, too. It does not hide that the others have
// ended.
func TestALostRecordIsNoticedBehindAHold(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		_, end := r.logStream(t, envoy.LogEdge)
		defer end()
		r.slots.up(engineA, 1)
		r.served(t)
		waits := r.ask(t, chat(false)) // for a slot
		elapse(settle + 1)
		r.twice(2, 0)
		require.Equal(t, 1, r.slots.taken(), "of the one that waited")
		r.noRecord(t)
		second := r.ask(t, chat(false))
		elapse(settle + 1)
		r.twice(1, 0) // that of the second
		require.Len(t, r.records, 2)
		waits.Reset()
		second.Reset()
		elapse(settle + logWait)
		r.twice(0, 0)
	})
}

func TestAnEngineThatHasFewerRequestsGivesSlotsBack(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.slots.up(engineA, 3)
		r.served(t)
		elapse(time.Second)
		r.served(t)
		elapse(settle)
		r.Free(engineB, 0, time.Now())
		r.Free(engineA, 1, time.Now())
		require.Equal(t, 2, r.slots.taken(), "the second is too young")
		elapse(time.Second + 1)
		r.Free(engineA, 1, time.Now())
		require.Equal(t, 1, r.slots.taken())
		r.Free(engineA, 1, time.Now())
		require.Equal(t, 1, r.slots.taken())
		r.Free(engineA, 0, time.Now())
		require.Zero(t, r.slots.taken())
		require.Zero(t, r.InFlight())
		r.noRecord(t)
		elapse(entryWait)
		require.Len(t, r.records, 2)
		require.Equal(t, CodeRecordLost, r.records[0].ErrorCode)
	})
}

// The slot was given back for another's lost record: when its engine dies the
// request still goes on, and the replica is still given up.
func TestARequestWithoutItsSlotSurvivesItsEngine(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		record, end := r.logStream(t, envoy.LogEdge)
		defer end()
		r.slots.up(engineA, 1)
		id := r.served(t)
		elapse(settle + 1)
		r.twice(1, 0)
		require.Zero(t, r.slots.taken())
		r.slots.up(engineB, 1)
		x := r.open(t, envoy.LaneRehold)
		x.Send(extproctest.Request(chatPath, `{"model":"m"}`, headerRequestID, id, envoy.FailedHeader, engineA+";sent=10")...)
		synctest.Wait()
		require.Len(t, r.slots.failures(), 1)
		require.Equal(t, 1, r.slots.taken())
		r.twice(1, 0)
		require.Equal(t, 1, r.slots.taken(), "a new attempt is young")
		record(id, envoy.ModeNative)
		require.Empty(t, r.only(t).ErrorCode)
		x.Reset()
	})
}

// countedGrant is a slot of engineA.
type countedGrant struct {
	holdstate.Grant
	taken    *int
	released bool
}

func (*countedGrant) Replica() holdstate.Replica { return holdstate.Replica{Address: engineA} }

func (g *countedGrant) Release() {
	if !g.released {
		g.released = true
		*g.taken--
	}
}

// bubbleTB hides the test's deadline, which a bubble may not ask for.
type bubbleTB struct{ rapid.TB }

// crowd is what Envoy carries, with slots of engineA.
type crowd struct {
	*Server
	t     *rapid.T
	taken int
	alive []string // stream names
	ended map[string]bool
	late  [2][]string // whose records are under way
	last  Look
}

// quiet is an observer of a crowd.
type quiet struct {
	Observer
	c *crowd
}

func (q quiet) Ended(r *Record) { q.c.ended[r.Request.ID] = true }

func (quiet) Freed(holdstate.Grant, int) {}

var someEnd = rapid.SampledFrom([]string{"not yet", "not yet", "not yet", "at once", "late", "lost"})

func (c *crowd) begin() {
	id := uuid.NewString()
	fl := c.flights.start([]byte(id), id, "envoy")
	fl.note(func(r *Record) { r.Request.ID = id })
	c.taken++
	require.True(c.t, fl.carry(&countedGrant{taken: &c.taken}))
	c.alive = append(c.alive, id)
}

// end ends one of them; its record arrives at once, late, or not at all.
func (c *crowd) end(i int, how string) {
	id := c.alive[i]
	c.alive = slices.Delete(c.alive, i, i+1)
	switch how {
	case "at once":
		c.onLogEntry(&wire.LogEntry{StreamID: id, Native: true})
	case "late":
		c.late[0] = append(c.late[0], id)
	}
}

func (c *crowd) change() {
	for i := range slices.Backward(c.alive) {
		if how := someEnd.Draw(c.t, "end"); how != "not yet" {
			c.end(i, how)
		}
	}
	for range rapid.IntRange(0, 3).Draw(c.t, "new") {
		c.begin()
	}
}

// look corrects, and checks that nothing was corrected that must not be.
func (c *crowd) look() {
	time.Sleep(lookEvery - time.Millisecond)
	for _, id := range c.late[1] {
		c.onLogEntry(&wire.LogEntry{StreamID: id, Native: true})
	}
	c.late = [2][]string{nil, c.late[0]}
	time.Sleep(time.Millisecond)
	next := looked(len(c.alive), len(c.alive))
	c.Correct(c.last, next)
	c.last = next
	require.GreaterOrEqual(c.t, c.taken, len(c.alive))
	for _, id := range c.alive {
		require.False(c.t, c.ended[id], "Envoy carries it")
	}
}

// Whatever is lost and whichever requests are long: no slot too many is given back,
// no request ends that Envoy carries, and at rest nothing is left.
func TestCorrectionsKeepTheirPromises(t *testing.T) {
	t.Parallel()
	check := func(t *rapid.T) {
		c := &crowd{t: t, ended: map[string]bool{}}
		c.Server = New(Options{MaxRequestBytes: 1, MaxBodyBytesTotal: 4}, Deps{Observer: quiet{c: c}, Log: zerolog.Nop()})
		c.logs.opened("envoy")
		c.last = looked(0, 0)
		for range rapid.IntRange(1, 20).Draw(t, "looks") {
			c.change()
			c.look()
		}
		for range 4 {
			c.look()
		}
		require.Equal(t, len(c.alive), c.taken, "slots, with requests that go on")
		for len(c.alive) > 0 {
			c.end(0, "at once")
		}
		for range 4 {
			c.look()
		}
		require.Zero(t, c.taken)
		require.Empty(t, c.flights.byID)
	}
	synctest.Test(t, func(t *testing.T) { rapid.Check(bubbleTB{t}, check) })
}
