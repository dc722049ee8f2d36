// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/holdgate/holdgate/holdstate"
)

// fakeSite are the gates of several routers that know of each other's reservations once
// tell is called.
type fakeSite struct {
	gates   []*gate
	waits   []int // requests that wait, by gate
	retries []int // calls of Retry, by gate
}

func newFakeSite(n int) *fakeSite {
	s := &fakeSite{gates: make([]*gate, n), waits: make([]int, n), retries: make([]int, n)}
	for i := range s.gates {
		s.gates[i] = &gate{site: map[string]*siteModel{}, sharing: &Sharing{
			Routers: func() int { return n }, OnChange: func(string) {}, Retry: func(string) { s.retries[i]++ },
		}}
	}
	return s
}

// tell has each gate know what the others have reserved for m.
func (s *fakeSite) tell() {
	all := make([]Occupancy, len(s.gates))
	for i, g := range s.gates {
		all[i] = g.occupancy("m", s.waits[i] > 0)
	}
	for i, g := range s.gates {
		var others []Occupancy
		for j, o := range all {
			if i != j && o.claims() {
				others = append(others, o)
			}
		}
		g.setOthers("m", others)
	}
}

// settle lets the windows end, and has each gate know of the others.
func (s *fakeSite) settle() {
	s.tell()
	pass(propagation)
}

// sum returns the requests and tokens that all gates have reserved for m.
func (s *fakeSite) sum() (requests, tokens int64) {
	for _, g := range s.gates {
		r, t := g.reserved("m")
		requests, tokens = requests+r, tokens+t
	}
	return requests, tokens
}

func TestTheGateCountsTheReservationsOfAllRouters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFakeSite(2)
		q := gateRequest{model: "m", limits: limits{requests: 2, tokens: 1000}, replicas: 1, tokens: 100, share: 1}
		first := admitted(t, s.gates[0], q)
		s.settle()
		second := admitted(t, s.gates[0], q)
		s.settle()
		refused(t, s.gates[1], q)
		fits, err := s.gates[1].fits(q)
		require.NoError(t, err)
		require.False(t, fits)
		q.retry = true
		again := admitted(t, s.gates[1], q)
		q.retry = false
		again.Release()
		first.Release()
		s.settle()
		large := q
		large.tokens = 801
		refused(t, s.gates[1], large) // 100 of 900 tokens are in use
		large.tokens = 800
		third := admitted(t, s.gates[1], large)
		second.Release()
		third.Release()
		s.settle()
		for _, g := range s.gates {
			require.Empty(t, g.models)
			require.Empty(t, g.site)
		}
	})
}

func TestTheShareOfAKeyIsOfAllRouters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFakeSite(3)
		q := gateRequest{model: "m", limits: limits{tokens: 1000}, replicas: 1, tokens: 100, key: "k", share: 0.25}
		first := admitted(t, s.gates[0], q)
		second := admitted(t, s.gates[1], q)
		s.settle()
		_, err := s.gates[2].reserve(q)
		require.ErrorIs(t, err, holdstate.ErrOverShare, "300 of 250")
		q.tokens = 50
		third := admitted(t, s.gates[2], q)
		s.settle()
		q.key = "other"
		q.tokens = 250
		other := admitted(t, s.gates[2], q)
		first.Release()
		s.settle()
		q.key, q.tokens = "k", 100
		admitted(t, s.gates[0], q).Release()
		for _, r := range []*reservation{second, third, other} {
			r.Release()
		}
	})
}

// Without the windows each of the three would admit 16.
func TestABurstAtAllRoutersDoesNotUseTheSpaceSeveralTimes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		limits      limits
		first, most int64 // of requests
	}{
		"requests": {limits{requests: 16}, 6, 18},
		"tokens":   {limits{tokens: 160}, 4, 16}, // a budget of 144: 48 tokens for each
		"both":     {limits{requests: 16, tokens: 10_000}, 6, 18},
		"one":      {limits{requests: 1}, 1, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newFakeSite(3)
				q := gateRequest{model: "m", limits: tt.limits, replicas: 1, tokens: 10, share: 1}
				burst := func(g *gate) (n int64) {
					for {
						r, err := g.reserve(q)
						require.NoError(t, err)
						if r == nil {
							return n
						}
						n++
					}
				}
				for i, g := range s.gates {
					require.Equal(t, tt.first, burst(g))
					s.waits[i]++
				}
				for range 20 {
					s.settle()
					for _, g := range s.gates {
						burst(g)
					}
				}
				requests, _ := s.sum()
				require.LessOrEqual(t, requests, tt.most)
				for i := range s.gates {
					require.Positive(t, s.retries[i], "what a window refused is tried again")
				}
			})
		})
	}
}

func TestARouterAloneAmongIdleOnesMayUseEverything(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFakeSite(3)
		q := gateRequest{model: "m", limits: limits{requests: 16}, replicas: 1, share: 1}
		begin := time.Now()
		var admitted int
		for admitted < 16 {
			r, err := s.gates[1].reserve(q)
			require.NoError(t, err)
			if r == nil {
				pass(time.Millisecond)
				continue
			}
			admitted++
		}
		require.LessOrEqual(t, time.Since(begin), 6*propagation, "a third of what is free in each window")
		refused(t, s.gates[1], q)
	})
}

// Each router has more requests than may run. What one frees goes to the one that has less,
// and then in turn.
func TestRoutersThatWaitShareTheLimitEvenly(t *testing.T) {
	t.Parallel()
	for _, limit := range []int64{1, 2, 5, 16} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const routers, rounds = 3, 300
				s := newFakeSite(routers)
				q := gateRequest{model: "m", limits: limits{requests: limit}, replicas: 1, share: 1}
				type run struct {
					router int
					*reservation
				}
				var running []run
				admissions := make([]int, routers)
				// The first router has everything before the others come.
				for int64(len(running)) < limit {
					if r, _ := s.gates[0].reserve(q); r != nil {
						running = append(running, run{0, r})
					}
					s.settle()
				}
				for i := range s.waits {
					s.waits[i] = 1
				}
				random := rand.New(rand.NewPCG(1, uint64(limit)))
				for range rounds {
					// One ends, and its own router is the first to know.
					i := random.IntN(len(running))
					router := running[i].router
					running[i].Release()
					running = append(running[:i], running[i+1:]...)
					for round := range 3 {
						for j := range routers {
							at := (router + j) % routers
							if r, _ := s.gates[at].reserve(q); r != nil {
								running = append(running, run{at, r})
								admissions[at]++
							}
							if round > 0 {
								s.tell()
							}
						}
						s.settle()
					}
					requests, _ := s.sum()
					require.LessOrEqual(t, requests, limit)
					require.Equal(t, limit, requests, "all of it is used")
				}
				for _, n := range admissions {
					require.Greater(t, n, rounds/routers/2, "%v", admissions)
				}
				for i, g := range s.gates {
					n, _ := g.reserved("m")
					require.GreaterOrEqual(t, n, limit/routers, "router %d", i)
				}
			})
		})
	}
}

// A router that died while its requests waited does not stop the others: they may use an
// equal part.
func TestARouterThatOnlySeemsToWaitLeavesTheOthersTheirPart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFakeSite(2)
		g := s.gates[0]
		g.setOthers("m", []Occupancy{{WaitsSince: time.Now()}})
		q := gateRequest{model: "m", limits: limits{requests: 8}, replicas: 1, share: 1}
		for range 4 {
			admitted(t, g, q)
		}
		pass(propagation)
		refused(t, g, q)
		g.setOthers("m", nil)
		pass(propagation)
		admitted(t, g, q)
	})
}

// siteRun is a request of the property test.
type siteRun struct {
	gateRequest
	router      int
	reservation *reservation
}

// TestTheCountsOfSeveralRoutersAreRight lets requests come and end at several routers, each of
// which knows of the others after each event.
func TestTheCountsOfSeveralRoutersAreRight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(bubbleTB{t}, func(t *rapid.T) {
			n := rapid.IntRange(2, 4).Draw(t, "routers")
			limits := limits{requests: rapid.Int64Range(0, 6).Draw(t, "inflight"), tokens: rapid.Int64Range(0, 60).Draw(t, "tokens")}
			b := &siteCounts{fakeSite: newFakeSite(n), t: t, limits: limits, queues: make([][]gateRequest, n)}
			for range rapid.IntRange(0, 30).Draw(t, "steps") {
				if len(b.running) > 0 && rapid.Bool().Draw(t, "end one") {
					b.end(rapid.IntRange(0, len(b.running)-1).Draw(t, "which"))
				} else {
					b.arrive(rapid.IntRange(0, n-1).Draw(t, "router"))
				}
				b.advance()
				b.check()
			}
			for len(b.running) > 0 {
				b.end(0)
				b.advance()
			}
			for i, queue := range b.queues {
				require.Empty(t, queue, "no request of router %d waits for ever", i)
			}
			b.settle()
			for _, g := range b.gates {
				require.Empty(t, g.models)
				require.Empty(t, g.site)
			}
		})
	})
}

// siteCounts are routers with a queue each.
type siteCounts struct {
	*fakeSite
	t       *rapid.T
	limits  limits
	queues  [][]gateRequest
	running []siteRun
}

func (b *siteCounts) arrive(router int) {
	b.queues[router] = append(b.queues[router], gateRequest{
		model: "m", limits: b.limits, replicas: 1, tokens: rapid.Int64Range(0, 40).Draw(b.t, "size"),
		key: rapid.SampledFrom([]string{"", "a", "b"}).Draw(b.t, "key"), share: rapid.SampledFrom([]float64{0.3, 1}).Draw(b.t, "share"),
	})
}

func (b *siteCounts) end(i int) {
	b.running[i].reservation.Release()
	b.running = append(b.running[:i], b.running[i+1:]...)
}

// advance makes reservations at all routers until none can.
func (b *siteCounts) advance() {
	for more := true; more; {
		more = false
		b.settle()
		for router := range b.gates {
			for len(b.queues[router]) > 0 {
				q := b.queues[router][0]
				r, err := b.gates[router].reserve(q)
				b.waits[router] = len(b.queues[router])
				if r == nil && err == nil {
					break
				}
				more = true
				b.queues[router] = b.queues[router][1:]
				b.waits[router]--
				if r != nil {
					b.running = append(b.running, siteRun{q, router, r})
				}
				b.settle()
			}
		}
	}
}

// check compares the sums with the limits, and requires that no space is left for the router
// whose turn it is.
func (b *siteCounts) check() {
	requests, tokens := b.sum()
	if b.limits.requests > 0 {
		require.LessOrEqual(b.t, requests, b.limits.requests)
	}
	if b.limits.tokens > 0 {
		require.LessOrEqual(b.t, tokens, b.limits.budget())
	}
	byKey := map[string]int64{}
	for _, r := range b.running {
		if r.shared() {
			byKey[r.key] += r.tokens
		}
	}
	for key, tokens := range byKey {
		if b.limits.tokens > 0 {
			require.LessOrEqual(b.t, float64(tokens), 0.3*float64(b.limits.tokens), key)
		}
	}
	waiting, fits := 0, 0
	for _, queue := range b.queues {
		if len(queue) == 0 {
			continue
		}
		waiting++
		if (b.limits.requests == 0 || requests < b.limits.requests) && (b.limits.tokens == 0 || tokens+queue[0].tokens <= b.limits.budget()) {
			fits++
		}
	}
	require.True(b.t, waiting == 0 || fits < waiting, "the router whose turn it is must not wait for space that is free")
}
