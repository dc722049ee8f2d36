// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"pgregory.net/rapid"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
)

// world is a registry with agents that do random things. After each of them
// its check compares the registry with what must be true of any.
type world struct {
	r      *Registry
	agents []*registration
	slots  []*Slot
	wanted bool
	next   int
	sent   []string // what the agents were sent in this step
	failed int      // wake failures reported in this step
}

func newWorld() *world {
	w := &world{}
	w.r = New(Options{
		Log:          zerolog.Nop(),
		OnWakeFailed: func(string, string) { w.failed++ },
	})
	return w
}

func (w *world) join(t *rapid.T) {
	w.next++
	rec := offline(t, w.r, aHello(named(fmt.Sprint("a", w.next)), func(h *pb.Hello) {
		h.Instance = instance(w.next)
		h.State = pb.State(rapid.SampledFrom([]int32{1, 1, 2, 3}).Draw(t, "state"))
		h.CanWake = rapid.IntRange(0, 3).Draw(t, "cannotWake") != 0
		if h.GetCanWake() && rapid.Bool().Draw(t, "idles") {
			idle(5 * time.Second)(h)
		}
	}))
	w.agents = append(w.agents, rec)
}

func (w *world) any(t *rapid.T) *registration {
	w.agents = slices.DeleteFunc(w.agents, func(a *registration) bool {
		if a.left {
			w.r.removeSession(a.session)
		}
		return a.left
	})
	if len(w.agents) == 0 {
		t.Skip("no agents")
	}
	return w.agents[rapid.IntRange(0, len(w.agents)-1).Draw(t, "agent")]
}

func (w *world) status(t *rapid.T) {
	a := w.any(t)
	s := &pb.Status{
		State:   pb.State(rapid.IntRange(1, 3).Draw(t, "state")),
		Healthy: rapid.IntRange(0, 3).Draw(t, "unhealthy") != 0,
		Handled: a.messages.last - min(a.messages.last, uint64(rapid.IntRange(0, 1).Draw(t, "late"))),
	}
	before := a.routed
	a.onStatus(s)
	if a.routed && !before && s.GetHandled() < a.messages.command {
		t.Fatal("brought into routing by old news")
	}
}

func (w *world) take(t *rapid.T) {
	slot, o := w.r.Take(llama)
	if (o == None) != (w.r.Serving(llama) == 0) {
		t.Fatalf("take says %v with %d replicas", o, w.r.Serving(llama))
	}
	if o == Taken {
		w.slots = append(w.slots, slot)
	}
}

func (w *world) slot(t *rapid.T) int {
	if len(w.slots) == 0 {
		t.Skip("no slots")
	}
	return rapid.IntRange(0, len(w.slots)-1).Draw(t, "slot")
}

func (w *world) release(i int) {
	w.slots[i].Release()
	w.slots = slices.Delete(w.slots, i, i+1)
}

// collect empties the outboxes.
func (w *world) collect() {
	w.sent = nil
	for _, a := range w.agents {
		for len(a.session.outbox) > 0 {
			switch (<-a.session.outbox).GetMessage().(type) {
			case *pb.RouterMessage_Wake:
				w.sent = append(w.sent, "wake")
			case *pb.RouterMessage_Sleep:
				w.sent = append(w.sent, "sleep")
			}
		}
	}
}

func (w *world) check(t *rapid.T) {
	synctest.Wait()
	w.collect()
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	routed, waking, wakeable, tried := 0, 0, 0, 0
	for _, a := range w.r.agents {
		if a.routed != a.routable() {
			t.Fatalf("%s: in routing %v, should be %v", a.hello.info.ID, a.routed, a.routable())
		}
		if open := !a.replica.gate.load().closed(); open != a.routed {
			t.Fatalf("%s: in routing %v, slots open %v", a.hello.info.ID, a.routed, open)
		}
		if a.toldToSleep && a.messages.command != a.messages.last && !a.probe.failed {
			t.Fatalf("%s: asked for its status after Sleep", a.hello.info.ID)
		}
		switch {
		case a.routed:
			routed++
		case a.waking():
			waking++
		case a.asleep() && a.hello.canWake && a.failures.blocked:
			tried++
		case a.asleep() && a.hello.canWake:
			wakeable++
		}
	}
	if n := w.r.Serving(llama); n != routed {
		t.Fatalf("%d replicas serve, %d should", n, routed)
	}
	wakes := len(slices.DeleteFunc(slices.Clone(w.sent), func(s string) bool { return s != "wake" }))
	switch {
	case w.wanted && routed+waking == 0 && wakeable > 0:
		t.Fatalf("lost wake: wanted, nothing on its way, and %d agents could be asked", wakeable)
	case w.wanted && routed+waking+wakeable == 0 && tried > 0 && !w.r.models["llama"].failureReported:
		t.Fatal("nobody was told that every wake failed")
	case wakes > 1 || wakes == 1 && waking > 1:
		t.Fatalf("%d agents were woken, %d are on their way", wakes, waking)
	case wakes == 1 && (!w.wanted || routed > 0):
		t.Fatalf("woken with wanted %v and %d replicas", w.wanted, routed)
	case w.failed > 0 && !w.wanted:
		t.Fatal("a wake failed for a model that was not wanted")
	case w.wanted && slices.Contains(w.sent, "sleep"):
		t.Fatal("put to sleep while wanted")
	}
	w.failed = 0
}

// bubbleTB hides the test's deadline, which a bubble may not use.
type bubbleTB struct{ rapid.TB }

func TestNoSequenceOfEventsLosesAWake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(bubbleTB{t}, func(t *rapid.T) {
			w := newWorld()
			t.Repeat(map[string]func(*rapid.T){
				"":            w.check,
				"join":        w.join,
				"leave":       func(t *rapid.T) { w.r.removeSession(w.any(t).session) },
				"status":      w.status,
				"status too":  w.status,
				"wake failed": func(t *rapid.T) { w.any(t).onWakeResult(&pb.WakeResult{Reason: "no"}) },
				"wanted": func(t *rapid.T) {
					w.wanted = rapid.IntRange(0, 3).Draw(t, "unwanted") != 0
					w.r.SetWanted("llama", w.wanted)
				},
				"serving": func(t *rapid.T) {
					a := w.any(t)
					a.onStatus(&pb.Status{State: pb.State_STATE_SERVING, Healthy: true, Handled: a.messages.last})
				},
				"take":    w.take,
				"release": func(t *rapid.T) { w.release(w.slot(t)) },
				"refused": func(t *rapid.T) { w.slots[w.slot(t)].Failed("no") },
				"wait": func(t *rapid.T) {
					time.Sleep(time.Duration(rapid.IntRange(1, 6000).Draw(t, "ms")) * time.Millisecond)
				},
			})
			for len(w.slots) > 0 {
				w.release(0)
			}
			for _, a := range w.agents {
				if a.replica.gate.inFlight() != 0 {
					t.Fatal("slots are left")
				}
				w.r.removeSession(a.session)
			}
			w.r.SetWanted("llama", false)
			if len(w.r.models)+len(w.r.agents)+len(w.r.departed)+len(w.r.sessions)+len(w.r.routing.pools) != 0 {
				t.Fatal("something is left")
			}
		})
	})
}
