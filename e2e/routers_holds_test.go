// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"net/http"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each router alone would hold all of its requests.
func TestTheHoldLimitIsForAllRoutersTogether(t *testing.T) {
	const limit, each = 30, 25
	rs := startRouters(t, 3, "--wake-hold-max="+strconv.Itoa(limit), "--wake-hold-max-per-key=1000")
	for _, r := range rs.all {
		r.metric("hivenet_shared_routers", "3")
	}
	answers := make(chan result)
	for range each {
		for _, r := range rs.all {
			answer := r.start(t.Context(), chatPath, chatBody("m", false))
			go func() { answers <- <-answer }()
		}
	}
	full := func() (n int) {
		for _, r := range rs.all {
			n += r.value(`wake_holds_total{outcome="full"}`)
		}
		return n
	}
	held := func() (n int) {
		for _, r := range rs.all {
			n += r.value(`pending_demand{model="m"}`)
		}
		return n
	}
	rs.all[0].eventually("each request is held or refused", func() bool { return full()+held() == 3*each })
	t.Logf("held: %d of %d", held(), limit)
	// On a busy machine answers may be late. Then a router decides alone, and takes at most a
	// third: not all of them do, or the server has granted nothing. Alone, the routers would hold
	// all.
	alone := 0
	for _, r := range rs.all {
		alone += r.value("shared_holds_alone_total")
	}
	if alone == 0 {
		require.Equal(t, limit, held())
	}
	require.GreaterOrEqual(t, held(), limit/3)
	require.LessOrEqual(t, held(), limit+2*(limit/3))
	refused := full()
	for range refused {
		r := <-answers
		require.Equal(t, http.StatusServiceUnavailable, r.status, r.body)
		require.Contains(t, r.body, "model_waking")
	}

	c, e := newCounter(t, 0)
	rs.agent("engine", e.addr(), 4)
	for range 3*each - refused {
		r := <-answers
		require.Equal(t, http.StatusOK, r.status, r.body)
	}
	c.mu.Lock()
	require.Equal(t, 3*each-refused, c.answered[""])
	c.mu.Unlock()
	for _, r := range rs.all {
		r.metric(`hivenet_pending_demand{model="m"}`, "0")
	}
}
