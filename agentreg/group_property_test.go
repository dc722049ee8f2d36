// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/agentreg/protocol"
)

// gpuAgent is an agent that obeys the router when the test lets it.
type gpuAgent struct {
	rec     *registration
	hello   *pb.Hello
	cost    int64
	told    []*pb.RouterMessage // not yet read
	state   pb.State            // of the engine
	ending  bool                // the engine is being stopped
	wanted  bool                // the last command was Wake
	handled uint64
	upSince time.Time
}

// takes reports whether the agent's engine takes of the room, or was sent a Wake.
func (a *gpuAgent) takes() bool {
	return a.state != pb.State_STATE_ASLEEP || a.wanted || slices.ContainsFunc(a.told, func(m *pb.RouterMessage) bool { return m.GetWake() != nil })
}

// gpu is agents whose engines share a room.
type gpu struct {
	r       *Registry
	room    int64
	agents  []*gpuAgent
	slots   map[*gpuAgent][]*Slot
	started int
}

func newGPU(t *rapid.T) *gpu {
	w := &gpu{r: New(Options{Log: zerolog.Nop()}), slots: map[*gpuAgent][]*Slot{}}
	w.room = rapid.Int64Range(1, 4).Draw(t, "room")
	time.Sleep(DefaultGroupGrace)
	for i := range rapid.IntRange(2, 6).Draw(t, "agents") {
		cost := rapid.Int64Range(1, w.room).Draw(t, "cost")
		model := fmt.Sprint("m", rapid.IntRange(0, 4).Draw(t, "model"))
		a := &gpuAgent{cost: cost, hello: member(fmt.Sprint("a", i), uint64(w.room), uint64(cost), func(h *pb.Hello) {
			h.Models = []string{model}
			if rapid.Bool().Draw(t, "idles") {
				idle(time.Minute)(h)
			}
			h.MinUpTime = durationpb.New(time.Duration(rapid.IntRange(0, 20).Draw(t, "min up")) * time.Second)
		})}
		w.agents = append(w.agents, a)
		w.connect(t, a)
	}
	return w
}

// connect makes a new agent of a: its engine does not run.
func (w *gpu) connect(t *rapid.T, a *gpuAgent) {
	w.started++
	a.hello.Instance, a.hello.State = instance(w.started), pb.State_STATE_ASLEEP
	a.told, a.state, a.ending, a.wanted, a.handled, a.upSince = nil, pb.State_STATE_ASLEEP, false, false, 0, time.Time{}
	a.rec = offline(t, w.r, a.hello)
	w.say(a)
}

// look returns what the registry has of a.
func (w *gpu) look(a *gpuAgent) (routed, released bool) {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	return a.rec.routed, a.rec.left
}

func (w *gpu) say(a *gpuAgent) {
	a.rec.onStatus(&pb.Status{
		State: a.state, Healthy: a.state == pb.State_STATE_SERVING && !a.ending, Handled: a.handled,
	})
}

// read takes in the oldest message.
func (w *gpu) read(a *gpuAgent) {
	if len(a.told) == 0 {
		return
	}
	m := a.told[0]
	a.told = a.told[1:]
	switch {
	case m.GetWake() != nil:
		a.wanted, a.handled = true, m.GetWake().GetSeq()
		if a.state == pb.State_STATE_ASLEEP {
			a.state = pb.State_STATE_WAKING
		}
	case m.GetSleep() != nil:
		a.wanted, a.handled = false, m.GetSleep().GetSeq()
		a.ending = a.state != pb.State_STATE_ASLEEP
	default:
		return
	}
	w.say(a)
}

// proceed lets the engine become what it should.
func (w *gpu) proceed(a *gpuAgent) {
	switch {
	case a.ending:
		a.ending, a.state, a.upSince = false, pb.State_STATE_ASLEEP, time.Time{}
		if a.wanted {
			a.state = pb.State_STATE_WAKING
		}
	case a.state == pb.State_STATE_WAKING:
		a.state, a.upSince = pb.State_STATE_SERVING, time.Now()
	}
	w.say(a)
}

// reconnect ends the stream of an agent that comes back in time. Its engine does not
// notice.
func (w *gpu) reconnect(t *rapid.T, a *gpuAgent) {
	w.r.removeSession(a.rec.session)
	for range rapid.IntRange(0, int(protocol.DefaultLiveness/time.Second)-1).Draw(t, "away") {
		w.pass(time.Second)
	}
	a.told, a.handled = nil, 0
	a.hello.State = a.state
	if a.ending {
		a.hello.State = pb.State_STATE_ASLEEP
	}
	a.rec = offline(t, w.r, a.hello)
	w.say(a)
}

func (w *gpu) fail(a *gpuAgent) {
	if a.state == pb.State_STATE_WAKING && !a.ending {
		a.state, a.wanted = pb.State_STATE_ASLEEP, false
		a.rec.onWakeResult(&pb.WakeResult{Reason: "no"})
		w.say(a)
	}
}

func (w *gpu) restart(t *rapid.T, a *gpuAgent) {
	w.freeAll(a)
	w.r.removeSession(a.rec.session)
	w.connect(t, a)
}

// crash ends the engine by itself, or the agent with it.
func (w *gpu) crash(t *rapid.T, a *gpuAgent) {
	if rapid.Bool().Draw(t, "the agent too") {
		w.restart(t, a)
		return
	}
	w.freeAll(a)
	if a.state == pb.State_STATE_SERVING && !a.ending {
		a.state, a.wanted, a.upSince = pb.State_STATE_ASLEEP, false, time.Time{}
		w.say(a)
	}
}

func (w *gpu) take(model string) {
	slot, o := w.r.Take(chatOf(model))
	if o != Taken {
		return
	}
	for _, a := range w.agents {
		if a.rec.replica == slot.replica {
			w.slots[a] = append(w.slots[a], slot)
		}
	}
}

func (w *gpu) freeAll(a *gpuAgent) {
	for _, s := range w.slots[a] {
		s.Release()
	}
	w.slots[a] = nil
}

func (w *gpu) check(t *rapid.T) {
	synctest.Wait()
	for _, a := range w.agents {
		if _, released := w.look(a); released { // it took in nothing for too long
			w.restart(t, a)
		}
		for len(a.rec.session.outbox) > 0 {
			m := <-a.rec.session.outbox
			a.told = append(a.told, m)
			if m.GetSleep() == nil {
				continue
			}
			if len(w.slots[a]) > 0 {
				t.Fatalf("%s was told to sleep with %d requests in flight", a.hello.GetAgentId(), len(w.slots[a]))
			}
			if up := time.Since(a.upSince); up < a.hello.GetMinUpTime().AsDuration() {
				t.Fatalf("%s was told to sleep after %v", a.hello.GetAgentId(), up)
			}
		}
	}
	taken := int64(0)
	for _, a := range w.agents {
		if a.takes() {
			taken += a.cost
		}
	}
	if taken > w.room {
		t.Fatalf("%d of %d are taken", taken, w.room)
	}
}

// everyoneGetsATurn wants all models for ever, with requests that never cease,
// until each has been served.
func (w *gpu) everyoneGetsATurn(t *rapid.T) {
	waits := map[string]bool{}
	for _, a := range w.agents {
		waits[a.hello.GetModels()[0]] = true
	}
	models := slices.Sorted(maps.Keys(waits))
	for range len(w.agents) * 60 {
		if len(waits) == 0 {
			return
		}
		for _, model := range models {
			w.r.SetWanted(model, w.r.Serving(chatOf(model)) == 0)
			w.take(model)
		}
		for _, a := range w.agents {
			w.check(t)
			routed, _ := w.look(a)
			if n := len(w.slots[a]); n > 1 || n == 1 && !routed {
				w.slots[a][0].Release()
				w.slots[a] = w.slots[a][1:]
			}
			w.check(t)
			w.read(a)
			w.proceed(a)
			if routed, _ := w.look(a); routed {
				delete(waits, a.hello.GetModels()[0])
				w.take(a.hello.GetModels()[0])
			}
		}
		time.Sleep(time.Second)
	}
	t.Fatalf("some never get a turn: %v", waits)
}

func TestAGroupIsNeverTooFullAndEveryoneGetsATurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(bubbleTB{t}, func(t *rapid.T) {
			w := newGPU(t)
			do := func(f func(*gpuAgent)) func(*rapid.T) {
				return func(t *rapid.T) { f(rapid.SampledFrom(w.agents).Draw(t, "agent")) }
			}
			model := func(t *rapid.T) string { return rapid.SampledFrom(w.agents).Draw(t, "of").hello.GetModels()[0] }
			t.Repeat(map[string]func(*rapid.T){
				"":           w.check,
				"read":       do(w.read),
				"read too":   do(w.read),
				"proceed":    do(w.proceed),
				"heartbeat":  do(w.say),
				"fail":       do(w.fail),
				"crash":      func(t *rapid.T) { w.crash(t, rapid.SampledFrom(w.agents).Draw(t, "agent")) },
				"reconnect":  func(t *rapid.T) { w.reconnect(t, rapid.SampledFrom(w.agents).Draw(t, "agent")) },
				"wanted":     func(t *rapid.T) { w.r.SetWanted(model(t), rapid.IntRange(0, 3).Draw(t, "unwanted") != 0) },
				"take":       func(t *rapid.T) { w.take(model(t)) },
				"release":    do(w.freeAll),
				"wait":       func(t *rapid.T) { w.pass(time.Duration(rapid.IntRange(1, 9000).Draw(t, "ms")) * time.Millisecond) },
				"wait a bit": func(*rapid.T) { w.pass(time.Second) },
			})
			w.everyoneGetsATurn(t)
			for _, a := range w.agents {
				w.freeAll(a)
				w.r.removeSession(a.rec.session)
			}
			time.Sleep(protocol.DefaultLiveness)
			synctest.Wait()
			if len(w.r.groups)+len(w.r.agents)+len(w.r.departed) != 0 {
				t.Fatal("something is left")
			}
		})
	})
}

// pass lets time pass, in which agents read and send.
func (w *gpu) pass(d time.Duration) {
	time.Sleep(d)
	for _, a := range w.agents {
		for len(a.rec.session.outbox) > 0 {
			a.told = append(a.told, <-a.rec.session.outbox)
		}
		w.say(a)
	}
}
