// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/agentreg/agent/divide"
	"github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/internal/grpctest"
	"github.com/holdgate/holdgate/internal/target"
)

// siteRouter is a router of a site, with requests that wait for a slot.
type siteRouter struct {
	*agentreg.Registry
	network *network
	server  *grpc.Server
	address string
	waiting atomic.Int64
	slots   []*agentreg.Slot
}

// siteRouter starts a router at an address.
func (n *network) siteRouter(address string) *siteRouter {
	n.t.Helper()
	r := &siteRouter{network: n, address: address}
	r.start()
	return r
}

// start starts the router, which knows nothing of an earlier one at its address.
func (r *siteRouter) start() {
	n := r.network
	r.Registry = agentreg.New(agentreg.Options{
		Log:         zerolog.New(zerolog.NewTestWriter(n.t)),
		SlotWaiters: func(target.Target) int { return int(r.waiting.Load()) },
	})
	r.slots = nil
	r.listen()
}

// listen makes the router accept agents' connections.
func (r *siteRouter) listen() {
	n := r.network
	r.server = grpc.NewServer(r.ServerOptions()...)
	agentregpb.RegisterAgentRegistryServer(r.server, r.Service())
	lis := grpctest.Listen(grpctest.Loopback)
	n.mu.Lock()
	n.at[r.address] = lis
	n.mu.Unlock()
	server := r.server
	go func() { _ = server.Serve(lis) }()
	n.t.Cleanup(server.Stop)
}

// wait sets the number of requests that wait.
func (r *siteRouter) wait(n int) {
	r.waiting.Store(int64(n))
	r.SlotWaitersChanged(llama)
	after(10 * time.Millisecond)
}

// take takes all slots that it can, and returns how many are taken.
func (r *siteRouter) take() int {
	for {
		slot, o := r.TakeFrom(llama, nil)
		if o != agentreg.Taken {
			return len(r.slots)
		}
		r.slots = append(r.slots, slot)
	}
}

// release releases slots.
func (r *siteRouter) release(n int) {
	for _, slot := range r.slots[:n] {
		slot.Release()
	}
	r.slots = r.slots[n:]
	after(10 * time.Millisecond)
}

// inEngine makes the engine report a number of requests; it is the only one whose metrics the
// engines have in these tests.
func (n *network) inEngine(count func() int) {
	n.engine = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			_, _ = fmt.Fprintf(w, "vllm:num_requests_running %d\nvllm:num_requests_waiting 0\n", count())
			return
		}
		_, _ = io.WriteString(w, "{}")
	})
}

// site runs an agent of four slots with routers that wait for nothing.
func (n *network) site(routers int) (list []*siteRouter) {
	n.t.Helper()
	list, cfg := n.siteOf(routers)
	n.run(cfg)
	after(time.Second)
	for _, r := range list {
		require.Equal(n.t, 1, r.Serving(llama))
	}
	return list
}

// siteOf starts routers, and returns them and the configuration of an agent of four slots.
func (n *network) siteOf(routers int) (list []*siteRouter, cfg Config) {
	n.t.Helper()
	n.health.Store(http.StatusOK)
	cfg = n.config()
	cfg.Routers, cfg.Slots = nil, 4
	for i := range routers {
		address := fmt.Sprintf("127.0.0.%d:9002", i+1)
		cfg.Routers = append(cfg.Routers, address)
		list = append(list, n.siteRouter(address))
	}
	return list, cfg
}

func TestIdleSlotsGoWhereRequestsWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		rs := n.site(3)
		for _, r := range rs {
			require.NotZero(t, r.Capacity(llama).Free, "an idle router has a slot at hand")
		}
		rs[1].wait(100)
		require.Equal(t, 4, rs[1].take(), "a lone busy router has all")
		require.Zero(t, rs[0].take())

		rs[2].wait(1)
		require.Zero(t, rs[2].take(), "they are taken")
		rs[1].release(1)
		require.Equal(t, 1, rs[2].take())
		rs[1].wait(100)
		require.Equal(t, 3, rs[1].take())
		rs[1].wait(0)
		rs[2].wait(0)
		rs[1].release(3)
		rs[2].release(1)
		after(10 * time.Second) // two heartbeats
		for _, r := range rs {
			require.NotZero(t, r.Capacity(llama).Free)
		}
	})
}

func TestAKilledRoutersSlotsAreFrozenUntilTheEngineIsFree(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		var running atomic.Int64
		n.inEngine(func() int { return int(running.Load()) })
		rs := n.site(2)
		running.Store(int64(rs[0].take()))
		require.EqualValues(t, 2, running.Load())
		rs[0].server.Stop()
		synctest.Wait()
		rs[1].wait(100)
		require.Equal(t, 2, rs[1].take())
		running.Add(2)
		rs[0].start()
		after(maxLinkBackoff)
		require.Zero(t, rs[0].take(), "the engine works on four requests")
		rs[0].wait(100)
		rs[1].release(1)
		running.Add(-1)
		require.Equal(t, 1, rs[0].take(), "each router that waits has one")
		running.Add(1)
		require.Equal(t, 1, rs[1].take())
		after(time.Minute)
		require.Equal(t, 2, rs[0].take()+rs[1].take())

		running.Add(-2) // Envoy carries them no more
		after(4 * divide.LookEvery)
		require.Equal(t, []int{2, 2}, []int{rs[0].take(), rs[1].take()})
	})
}

func TestAnEngineThatReportsNothingIsGivenTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		rs := n.site(2)
		rs[0].server.Stop()
		synctest.Wait()
		rs[1].wait(100)
		require.Equal(t, 2, rs[1].take())
		after(divide.GoneTime - time.Second)
		require.Equal(t, 2, rs[1].take())
		after(time.Second)
		require.Equal(t, 4, rs[1].take())
	})
}

func TestADrainedRouterFreezesOnlyWhatEnvoyCarries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		rs := n.site(2)
		rs[0].take()
		rs[0].release(1)
		rs[0].Drain()
		rs[0].server.GracefulStop()
		synctest.Wait()
		rs[1].wait(100)
		require.Equal(t, 3, rs[1].take())
	})
}

func TestARestartOfTheOnlyRouterCostsNoSlot(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ running, slots int }{
		"the engine reports nothing": {-1, 4}, "it works on nothing": {0, 4}, "it works on three": {3, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t)
				var running atomic.Int64
				running.Store(int64(c.running))
				n.inEngine(func() int { return int(running.Load()) })
				rs := n.site(1)
				rs[0].take()
				after(sampleEvery)
				rs[0].server.Stop()
				synctest.Wait()
				rs[0].start()
				after(maxLinkBackoff)
				require.Equal(t, c.slots, rs[0].take())
				running.Store(0)
				after(4 * divide.LookEvery)
				require.Equal(t, 4, rs[0].take())
			})
		})
	}
}

func TestRoutersTakeTurnsAtASingleSlot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		rs, cfg := n.siteOf(3)
		cfg.Slots = 1
		n.run(cfg)
		after(time.Second)
		served := map[*siteRouter]int{}
		for _, r := range rs {
			r.wait(100)
		}
		for range 60 {
			taken := 0
			for _, r := range rs {
				if r.take() > 0 {
					served[r]++
				}
				taken += len(r.slots)
			}
			require.LessOrEqual(t, taken, 1)
			after(500 * time.Millisecond)
			for _, r := range rs {
				r.release(len(r.slots))
			}
		}
		for i, r := range rs {
			require.Greater(t, served[r], 10, "router %d", i)
		}
	})
}

// A router whose requests may not wait gets a slot because they are refused.
func TestARefusedRequestBringsASlot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		rs := n.site(2)
		rs[1].wait(100)
		require.Equal(t, 4, rs[1].take())
		require.Zero(t, rs[0].take())
		rs[0].Refused("llama")
		after(10 * time.Millisecond)
		rs[1].release(1)
		require.Equal(t, 1, rs[0].take())
	})
}

// An agent that restarts does not know what its routers have in the engine.
func TestARestartedAgentCountsWhatTheEngineHas(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		var running atomic.Int64
		n.inEngine(func() int { return int(running.Load()) })
		rs, cfg := n.siteOf(2)
		end := n.run(cfg)
		after(time.Second)
		require.Equal(t, 2, rs[1].take())
		running.Store(2)
		require.NoError(t, end())
		n.run(cfg)
		synctest.Wait()
		require.LessOrEqual(t, rs[0].take(), 2)
		after(5 * time.Second)
		rs[0].wait(100)
		require.Equal(t, []int{2, 2}, []int{rs[0].take(), rs[1].take()}, "those of the earlier agent are not counted twice")
		running.Store(2)
		rs[1].release(2)
		after(askPause)
		require.Equal(t, 4, rs[0].take())
	})
}

// A stream that breaks is not the end of its router.
func TestARouterThatReconnectsKeepsItsSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		rs := n.site(2)
		require.Equal(t, 2, rs[0].take())
		rs[0].server.Stop()
		rs[0].listen()
		after(maxLinkBackoff)
		rs[1].wait(100)
		require.Equal(t, 2, rs[1].take())
		rs[0].release(2)
		require.Equal(t, 2, rs[1].take())
		after(askPause)
		require.Equal(t, 4, rs[1].take(), "the other one was asked")
	})
}

func TestALostConnectionIsNotAKilledRouter(t *testing.T) {
	t.Parallel()
	for text, lost := range map[string]bool{
		"rpc error: code = Unavailable desc = error reading from server: EOF":                                false,
		"rpc error: code = Unavailable desc = keepalive ping failed to receive ACK within timeout":           true,
		"rpc error: code = Unavailable desc = error reading from server: read tcp: connection timed out":     true,
		"rpc error: code = Unavailable desc = error reading from server: read tcp: connection reset by peer": false,
	} {
		require.Equal(t, lost, unnoticed(errors.New(text)), text)
	}
	require.False(t, unnoticed(nil))
}

// engineLoad counts requests in an engine of four slots.
type engineLoad struct {
	mu         sync.Mutex
	now, most  int
	answered   int
	perRouters map[int]int
}

func (e *engineLoad) begin() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.now++
	e.most = max(e.most, e.now)
}

func (e *engineLoad) end(router int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.now--
	e.answered++
	e.perRouters[router]++
}

// Routers under load are killed and come back, while Envoy carries their requests to the end.
func TestRoutersThatComeAndDieNeverSendMoreThanTheSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		load := &engineLoad{perRouters: map[int]int{}}
		n.inEngine(func() int {
			load.mu.Lock()
			defer load.mu.Unlock()
			return load.now
		})
		rs := n.site(3)
		stop := make(chan struct{})
		var clients sync.WaitGroup
		var mu sync.Mutex // guards the registries
		for i := range 60 {
			clients.Go(func() { client(rs[i%3], i%3, &mu, load, stop) })
		}
		for range 30 {
			after(time.Duration(rand.IntN(4000)) * time.Millisecond)
			victim := rs[rand.IntN(3)]
			victim.server.Stop()
			synctest.Wait()
			mu.Lock()
			victim.start()
			mu.Unlock()
		}
		after(5 * time.Second)
		load.mu.Lock()
		before := load.answered
		load.mu.Unlock()
		after(20 * time.Second)
		load.mu.Lock()
		require.Greater(t, load.answered, before+40, "all slots are in use again")
		require.Equal(t, 4, load.most)
		for i := range rs {
			require.Greater(t, load.perRouters[i], load.answered/6, "router %d has its part", i)
		}
		load.mu.Unlock()
		close(stop)
		clients.Wait()
	})
}

// client sends requests one after the other by whatever router is at its address.
func client(r *siteRouter, number int, mu *sync.Mutex, load *engineLoad, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		mu.Lock()
		reg := r.Registry
		mu.Unlock()
		r.waiting.Add(1)
		reg.SlotWaitersChanged(llama)
		var slot *agentreg.Slot
		for try := 0; slot == nil && try < 1000; try++ {
			time.Sleep(time.Millisecond)
			slot, _ = reg.TakeFrom(llama, nil)
		}
		r.waiting.Add(-1)
		reg.SlotWaitersChanged(llama)
		if slot == nil {
			continue
		}
		load.begin()
		time.Sleep(time.Duration(50+rand.IntN(2000)) * time.Millisecond)
		load.end(number)
		time.Sleep(5 * time.Millisecond) // the log entry
		slot.Release()
	}
}
