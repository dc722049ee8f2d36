// SPDX-License-Identifier: Apache-2.0

package herd

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// recordWait is longer than a record waits for Envoy's part of it, which never comes
// here.
const recordWait = 10 * time.Second

// A thousand requests of ten keys are held, their model wakes with one replica, and
// more replicas join. 40 clients of an eleventh key leave meanwhile.
func TestAThousandReleasedRequestsWhileReplicasJoin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const requests, keys, leave, replicas = 1000, 10, 40, 12
		d := newRouter(t, "models: {m: {max_inflight: 6, admit_budget_tokens: 400}}", time.Hour, 2*time.Second)
		var all, leaving []*client
		for n := range requests {
			all = append(all, d.ask(n, fmt.Sprint("key-", n%keys), 20+n*37%60))
			if n%(requests/leave) == 0 {
				leaving = append(leaving, d.ask(requests+len(leaving), "leaves", 50))
			}
			time.Sleep(10 * time.Millisecond)
		}
		require.Equal(t, requests+leave, d.machine.Demand(chatOfM.Model))
		time.Sleep(37 * time.Second)
		d.join()
		time.Sleep(5 * time.Second)
		for _, c := range leaving[leave/10:] {
			c.leave()
		}
		for range replicas - 1 {
			d.join()
			time.Sleep(5 * time.Second)
		}
		for _, c := range all {
			<-c.done
			require.Equal(t, []string{"200", c.want()}, []string{c.status, c.answer()}, c.n)
			require.LessOrEqual(t, c.longest, interval, "a silence of request %d", c.n)
			require.Greater(t, c.took, interval, "it saw keepalives")
		}
		for _, c := range leaving {
			<-c.done
		}
		time.Sleep(recordWait)
		requireFair(t, d.served(), keys)
		require.Equal(t, requests, d.statuses()[200]-answeredBeforeLeaving(leaving))
		require.Equal(t, leave, d.statuses()[499]+answeredBeforeLeaving(leaving))
		d.requireAtRest(requests + leave)
		require.Zero(t, d.server.InFlight())
	})
}

// answeredBeforeLeaving counts the clients that had their answer before they left.
func answeredBeforeLeaving(leaving []*client) (n int) {
	for _, c := range leaving {
		if c.answer() == c.want() {
			n++
		}
	}
	return n
}

// requireFair requires strict order inside a key, and that no key is ever two slots
// ahead of another. All keys but the last have the same number of requests.
func requireFair(t *testing.T, served []*client, keys int) {
	t.Helper()
	last, has := map[string]int{}, map[string]int{}
	for _, c := range served {
		if before, seen := last[c.key]; seen {
			require.Less(t, before, c.n, "the order inside %s", c.key)
		}
		last[c.key] = c.n
		if c.key == "leaves" {
			continue
		}
		has[c.key]++
		least := has["key-0"]
		for k := range keys {
			least = min(least, has["key-"+strconv.Itoa(k)])
		}
		require.LessOrEqual(t, has[c.key], least+1)
	}
	require.Len(t, has, keys)
}

// One replica of 4 slots, 100 released requests, 60 s to wait for a slot. With answers
// of 7 s, 36 are served in order, and the others end with 504.
func TestReleasedRequestsAreServedInOrderUntilTheirSlotWaitEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newRouter(t, "models: {m: {}}", time.Minute, 6*time.Second)
		var all []*client
		for n := range 100 {
			all = append(all, d.ask(n, "k", 10))
			synctest.Wait()
		}
		time.Sleep(20*time.Second + time.Millisecond)
		d.join()
		released := time.Now()
		var inTime, late []int
		for _, c := range all {
			<-c.done
			require.LessOrEqual(t, c.longest, interval)
			if c.answer() == c.want() {
				inTime = append(inTime, c.n)
				continue
			}
			late = append(late, c.n)
			require.Contains(t, c.answer(), `"code":"request_timeout"`)
			require.Equal(t, 80*time.Second+time.Millisecond, c.took, "a minute after the release")
		}
		require.Len(t, inTime, 9*4, "in 9 rounds of 7 s")
		require.True(t, slices.IsSorted(inTime))
		require.Len(t, late, 64)
		require.Less(t, time.Since(released), 64*time.Second)
		time.Sleep(recordWait)
		require.Equal(t, map[int]int{200: 36, 504: 64}, d.statuses())
		for i, c := range d.served() {
			require.Equal(t, i, c.n)
		}
		d.requireAtRest(100)
		require.Zero(t, d.server.InFlight())
	})
}
