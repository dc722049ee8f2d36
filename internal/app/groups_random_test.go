// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/target"
)

// The longest times of the engines and requests of a gpuBox.
const (
	longestStart  = 8 * time.Second
	longestStop   = 2 * time.Second
	longestWork   = 4 * time.Second
	boxMinUp      = 5 * time.Second
	boxModels     = "abcd"
	longestTurn   = longestStart + boxMinUp + longestWork + longestStop
	longestWait   = time.Duration(len(boxModels))*longestTurn + longestStart
	failedOneIn   = 4
	trafficOfABox = 5 * time.Minute
)

// gpuBox is a router whose four models share the room of one.
type gpuBox struct {
	*rig
	random *rand.Rand // only for the goroutine of the test

	mu      sync.Mutex
	awake   map[string]bool // engines that take of the room
	serving map[string]bool
	ends    map[string]int // of requests, by what became of them
	asked   int
	held    int
	faults  []string
}

func (b *gpuBox) fault(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults = append(b.faults, fmt.Sprintf(format, args...))
}

// setEngine records what an engine does.
func (b *gpuBox) setEngine(id string, awake, serving bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.awake[id], b.serving[id] = awake, serving
	n := 0
	for _, a := range b.awake {
		if a {
			n++
		}
	}
	if n > 1 {
		b.faults = append(b.faults, fmt.Sprintf("%d engines are awake: %v", n, b.awake))
	}
}

// engine plays the agent of a model until its stream ends. Its starts and stops take the
// times that times draws; some starts fail.
func (b *gpuBox) engine(p *played, id string, times *rand.Rand) {
	orders := make(chan bool)
	var seq uint64
	go func() {
		defer close(orders)
		for {
			m, err := p.stream.Recv()
			if err != nil {
				return
			}
			p.mu.Lock()
			p.seq = max(p.seq, m.GetWake().GetSeq(), m.GetSleep().GetSeq(), m.GetStatusRequest().GetSeq())
			p.mu.Unlock()
			if m.GetWake() != nil || m.GetSleep() != nil {
				orders <- m.GetWake() != nil
			}
		}
	}()
	state, wanted := pb.State_STATE_ASLEEP, false
	stopping := false
	next := time.NewTimer(0)
	<-next.C
	say := func(state pb.State) {
		p.mu.Lock()
		seq = p.seq
		p.mu.Unlock()
		_ = p.stream.Send(&pb.AgentMessage{Message: &pb.AgentMessage_Status{Status: &pb.Status{
			State: state, Healthy: state == pb.State_STATE_SERVING && !stopping, Handled: seq, Routers: 1,
		}}})
	}
	say(state)
	start := func() {
		state = pb.State_STATE_WAKING
		b.setEngine(id, true, false)
		next.Reset(1 + times.N(longestStart))
	}
	for {
		select {
		case up, open := <-orders:
			if !open {
				next.Stop()
				return
			}
			wanted = up
			switch {
			case up && state == pb.State_STATE_ASLEEP:
				start()
			case !up && state != pb.State_STATE_ASLEEP && !stopping:
				stopping = true
				b.setEngine(id, true, false)
				next.Reset(1 + times.N(longestStop))
			}
		case <-next.C:
			switch {
			case stopping:
				stopping, state = false, pb.State_STATE_ASLEEP
				b.setEngine(id, false, false)
				if wanted {
					start()
				}
			case times.IntN(failedOneIn) == 0:
				state, wanted = pb.State_STATE_ASLEEP, false
				b.setEngine(id, false, false)
				_ = p.stream.Send(&pb.AgentMessage{Message: &pb.AgentMessage_WakeResult{WakeResult: &pb.WakeResult{Model: id, Reason: "no"}}})
			default:
				state = pb.State_STATE_SERVING
				b.setEngine(id, true, true)
			}
		}
		say(state)
	}
}

// request is one request of a client that waits for so long and is then served for
// some time.
func (b *gpuBox) request(model string, patience, work time.Duration) {
	begin := time.Now()
	end := func(what string) {
		b.mu.Lock()
		b.ends[what]++
		b.mu.Unlock()
		if took := time.Since(begin); took > longestWait {
			b.fault("a request for %s was %s after %v", model, what, took)
		}
	}
	call := calls(b.t, b.App, "")
	for {
		d := call.Decide(&extproc.Request{
			Method: "POST", PathAndQuery: "/v1/chat/completions",
			Endpoint: &extproc.Endpoint{Kind: target.Chat}, Model: model, Patience: -1,
		})
		switch {
		case d.Refusal != nil:
			end(d.Refusal.Code)
			return
		case d.Grant != nil:
			b.serveIt(d.Grant, work)
			end("served")
			return
		}
		if d.Held {
			b.mu.Lock()
			b.held++
			b.mu.Unlock()
		}
		switch s := b.await(d.Waiter, begin.Add(patience)); {
		case s.Grant != nil && s.State == holdstate.Granted:
			d.Waiter.Report(holdstate.Done)
			end("served")
			b.serveIt(s.Grant, work)
			return
		case s.Outcome == holdstate.OutcomeDisconnected:
			end("left")
			return
		case s.Outcome == holdstate.OutcomeWakeFailed:
			end("failed")
			return
		case d.Held:
			b.fault("a held request for %s ended as %v: %v", model, s.Outcome, s.Err)
			return
		} // it waited for a slot of a replica that is gone: it is decided anew
	}
}

// await waits until the waiter has its grant or its end, or its client leaves.
func (b *gpuBox) await(w *holdstate.Waiter, leaves time.Time) holdstate.Status {
	patience := time.NewTimer(time.Until(leaves))
	defer patience.Stop()
	for {
		if s := w.Status(); s.State == holdstate.Granted || s.State == holdstate.Ended {
			return s
		}
		select {
		case <-w.Changed():
		case <-patience.C:
			if s := w.Report(holdstate.Leave); s.State != holdstate.Granted {
				return s
			}
		}
	}
}

// serveIt keeps the request in its engine for a while.
func (b *gpuBox) serveIt(g holdstate.Grant, work time.Duration) {
	id := g.Replica().ID
	b.checkServing(id)
	time.Sleep(work)
	b.checkServing(id)
	g.Release()
}

func (b *gpuBox) checkServing(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.serving[id] {
		b.faults = append(b.faults, "a request was in the engine of "+id+", which was not up")
	}
}

// TestAGroupUnderRandomTraffic has random requests for four models of which one can be
// awake, with clients that give up, starts that fail and wakes ahead of traffic. No two
// engines are awake at once, each request is served by an engine that is up or ends for
// one reason, and none waits longer than what the turns of the others take.
func TestAGroupUnderRandomTraffic(t *testing.T) {
	t.Parallel()
	for seed := range uint64(12) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				b := &gpuBox{
					rig: r, random: rand.New(rand.NewPCG(seed, 1)),
					awake: map[string]bool{}, serving: map[string]bool{}, ends: map[string]int{},
				}
				b.run()
				require.Empty(t, b.faults)
				total := 0
				for _, n := range b.ends {
					total += n
				}
				require.Equal(t, b.asked, total, "each request has one end: %v", b.ends)
				counted := 0
				for _, outcome := range []string{"released", "disconnected", "wake_failed"} {
					counted += r.holds(outcome)
				}
				require.Equal(t, b.held, counted, "each hold is counted once")
				for _, end := range []string{"served", "left", "failed", "model_waking"} {
					require.NotZero(t, b.ends[end], "%s: %v", end, b.ends)
				}
			}, "--group-grace=0s", "--wake-hold-max=10000", "--wake-hold-max-total=10000")
		})
	}
}

func (b *gpuBox) run() {
	placements := ""
	for _, m := range boxModels {
		placements += fmt.Sprintf(`,{"model": "%c", "kind": "chat", "site": "here", "scale_from_zero": true, "hold_budget": "1h"}`, m)
	}
	_, err := b.maps.Push([]byte(`{"placements": [`+placements[1:]+`]}`), true)
	require.NoError(b.t, err)
	var agents []*played
	for i, m := range boxModels {
		id := string(m)
		p := b.connect(id, func(h *pb.Hello) {
			h.MinUpTime, h.Slots = durationpb.New(boxMinUp), 1000
			h.Group = &pb.Group{Name: "gpu0", Room: 1, Cost: 1}
		})
		agents = append(agents, p)
		go b.engine(p, id, rand.New(rand.NewPCG(b.random.Uint64(), uint64(i))))
	}
	synctest.Wait()
	var requests sync.WaitGroup
	for begin := time.Now(); time.Since(begin) < trafficOfABox; time.Sleep(b.random.N(1500 * time.Millisecond)) {
		// The first model has most of the traffic, and at times there is none.
		model := boxModels[min(b.random.IntN(2*len(boxModels)), len(boxModels)-1)]
		switch n := b.random.IntN(40); {
		case n == 0:
			time.Sleep(b.random.N(30 * time.Second))
		case n < 3:
			require.NoError(b.t, b.wakeModel(string(model), time.Second+b.random.N(time.Minute)))
		default:
			patience := time.Hour
			if n < 12 {
				patience = b.random.N(10 * time.Second)
			}
			work := 1 + b.random.N(longestWork)
			b.asked++
			requests.Go(func() { b.request(string(model), patience, work) })
		}
	}
	requests.Wait()
	time.Sleep(time.Hour) // lingers and needs end
	for _, p := range agents {
		p.leave()
	}
}
