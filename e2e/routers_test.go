// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// The parts of a site end and start again, and its other routers serve on.
func TestARouterThatDiesLeavesTheOthersServing(t *testing.T) {
	rs := startRouters(t, 3)
	c, e := newCounter(t, 0)
	rs.agent("engine", e.addr(), 4)
	ask := func(rs ...*router) {
		t.Helper()
		for _, r := range rs {
			answer := r.post(chatPath, chatBody("m", false), "X-Of", r.url)
			require.Equal(t, http.StatusOK, answer.status, answer.body)
		}
	}
	ask(rs.all...)
	dead := rs.all[0]
	dead.kill()
	require.Equal(t, http.StatusServiceUnavailable, dead.post(chatPath, chatBody("m", false)).status)
	ask(rs.all[1:]...)
	dead.start()
	dead.ready()
	dead.knows("engine")
	dead.killEnvoy()
	dead.startEnvoy()
	rs.valkey.Stop()
	ask(rs.all...)
	rs.valkey.Restart()
	for _, r := range rs.all {
		r.metric("hivenet_shared_up", "1")
		r.metric("hivenet_shared_routers", "3")
	}
	ask(rs.all...)
	require.Equal(t, map[string]int{dead.url: 3, rs.all[1].url: 4, rs.all[2].url: 4}, c.answered)
	for _, r := range rs.all {
		r.metric(`hivenet_agent_slots_in_use{agent_id="engine"}`, "0")
	}
}
