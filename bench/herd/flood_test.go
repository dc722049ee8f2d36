// SPDX-License-Identifier: Apache-2.0

package herd

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/holdstate"
)

const (
	requests = 10_000
	heavy    = "key-00" // of half of the requests
	light    = "key-49" // of the last eight requests
	ofHeavy  = 5_000
	ofLight  = 8
	work     = 2 * time.Second // the time an engine needs for one request

	// A replica may have 1,800 tokens in progress, so it depends on their sizes whether
	// requests wait for a reservation or for a slot.
	floodPolicy = "models: {m: {max_inflight: 6, admit_budget_tokens: 2000}}"
	tooLarge    = 1801
)

// request is a request that waits.
type request struct {
	n      int // the place in the order of arrival
	key    string
	tokens int64
	claim  *claim
	waiter *holdstate.Waiter
	leaves bool // gives up before the release
	ended  int  // how many times
	err    error
}

// arrivals returns the requests in the order of arrival: half of them of one key, a
// light key last.
func arrivals() []*request {
	r := rand.New(rand.NewPCG(1, 2))
	keys := slices.Repeat([]string{heavy}, ofHeavy)
	for i := range requests - ofHeavy - ofLight {
		keys = append(keys, fmt.Sprintf("key-%02d", 1+i%48))
	}
	r.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	keys = append(keys, slices.Repeat([]string{light}, ofLight)...)
	all := make([]*request, len(keys))
	for i, key := range keys {
		all[i] = &request{n: i, key: key, leaves: i%100 == 7 && key != light}
		tokens := r.Int64N(500) + 50
		if i%1000 == 3 {
			tokens = tooLarge
		}
		all[i].tokens = tokens
	}
	return all
}

// wait waits from the request's hold to its end.
func (v *request) wait(s *site) {
	for {
		st := v.waiter.Status()
		switch st.State {
		case holdstate.Granted:
			v.waiter.Report(holdstate.Done)
			s.begins(st.Grant.Replica().Address)
			time.Sleep(work)
			s.ends(st.Grant.Replica().Address)
			st.Grant.Release()
			v.ended++
			return
		case holdstate.Ended:
			v.err = st.Err
			v.ended++
			return
		default:
			<-v.waiter.Changed()
		}
	}
}

// flood holds all requests while replicas join one by one. It returns the requests that
// had a slot, in order, and when each had it, counted from the release.
func flood(t *testing.T, inOrder bool) (served []*request, after []time.Duration) {
	t.Helper()
	s := newSite(t, floodPolicy, inOrder)
	all := arrivals()
	of := map[*claim]*request{}
	var wg sync.WaitGroup
	for _, v := range all {
		v.claim = s.ledger.claim(v.key, v.tokens)
		w, err := s.machine.Hold(holdstate.Request{Target: chatOfM, Key: v.key, Claim: v.claim})
		require.NoError(t, err)
		v.waiter, of[v.claim] = w, v
		wg.Go(func() { v.wait(s) })
	}
	require.Equal(t, requests, s.machine.Demand(chatOfM.Model))
	for _, v := range all {
		if v.leaves {
			v.waiter.Report(holdstate.Leave)
		}
	}
	time.Sleep(time.Minute)
	released := time.Now()
	for range 25 {
		s.join()
		time.Sleep(5 * time.Second)
	}
	wg.Wait()
	s.requireAtRest(requests)
	for _, v := range all {
		require.Equal(t, 1, v.ended)
		if v.tokens == tooLarge && !v.leaves {
			require.ErrorIs(t, v.err, holdstate.ErrTooLarge)
		} else {
			require.NoError(t, v.err)
		}
	}
	for _, given := range s.ledger.slots() {
		served = append(served, of[given.claim])
		after = append(after, given.at.Sub(released))
	}
	return served, after
}

// rounds returns the required order of slots: one slot for each key in each round, the
// keys in order of their first arrival, and strictly by arrival inside a key.
func rounds(all []*request) (want []*request) {
	var ring []string
	of := map[string][]*request{}
	for _, v := range all {
		if of[v.key] == nil {
			ring = append(ring, v.key)
		}
		of[v.key] = append(of[v.key], v)
	}
	for len(want) < len(all) {
		for _, key := range ring {
			if queue := of[key]; len(queue) > 0 {
				want, of[key] = append(want, queue[0]), queue[1:]
			}
		}
	}
	return want
}

func numbers(of []*request) []int {
	n := make([]int, len(of))
	for i, v := range of {
		n[i] = v.n
	}
	return n
}

func TestTenThousandWaitersOfFiftyKeys(t *testing.T) {
	t.Parallel()
	var willing []*request
	for _, v := range arrivals() {
		if !v.leaves && v.tokens != tooLarge {
			willing = append(willing, v)
		}
	}
	for name, tt := range map[string]struct {
		inOrder bool
		want    []*request
	}{
		"fair":    {false, rounds(willing)},
		"arrival": {true, willing},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				served, after := flood(t, tt.inOrder)
				require.Equal(t, numbers(tt.want), numbers(served))
				report(t, name, served, after)
			})
		})
	}
}

// report logs a row of the table in docs/performance.md, and requires that the rounds
// in which every key has a waiter are fair.
func report(t *testing.T, order string, served []*request, after []time.Duration) {
	t.Helper()
	const whole = 50 * ofLight // slots of the rounds in which every key has a waiter
	first, last, has := map[string]int{}, map[string]int{}, map[string]int{}
	for i, v := range served {
		if _, seen := first[v.key]; !seen {
			first[v.key] = i
		}
		last[v.key] = i
		if i < whole {
			has[v.key]++
		}
	}
	fairness := jain(has, 50)
	var small []time.Duration
	for key := range last {
		if key != heavy && key != light {
			small = append(small, after[last[key]])
		}
	}
	t.Logf("| %s | %d (%v) | %v | %v | %v | %.3f |", order, first[light]+1, after[first[light]], after[last[light]], slices.Max(small), after[last[heavy]], fairness)
	if order == "fair" {
		require.Less(t, first[light], 50, "the light key that came last is among the first")
		require.InDelta(t, 1, fairness, 1e-9)
	}
}

// jain returns Jain's fairness index of n keys: 1 if all have the same share, 1/n if
// one has all.
func jain(has map[string]int, n float64) float64 {
	sum, squares := 0.0, 0.0
	for _, x := range has {
		sum += float64(x)
		squares += float64(x * x)
	}
	return sum * sum / (n * squares)
}
