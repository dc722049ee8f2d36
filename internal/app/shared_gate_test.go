// SPDX-License-Identifier: Apache-2.0

package app

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/agentreg/agentregtest"
	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/polltest"
	"github.com/holdgate/holdgate/internal/shared/valkeytest"
	"github.com/holdgate/holdgate/internal/target"
)

// Two routers with the same replica, whose gate admits one request. The requests that wait at
// both get it in turn.
func TestTheAdmissionGateIsForAllRoutersOfASite(t *testing.T) {
	t.Parallel()
	server := valkeytest.Start(t)
	policy := temporary(t, "models: {m: {max_inflight: 1}}")
	routers := make([]*App, 2)
	for i := range routers {
		routers[i] = sharing(t, server, "--policy-file="+policy)
		agentregtest.Connect(t.Context(), routers[i].registry, "a", "eu", 8, []string{"m"}, []string{"chat"})
	}
	for _, a := range routers {
		polltest.Until(t, "the replica serves", func() bool { return a.registry.Serving(target.Target{Model: "m"}) == 1 })
		polltest.Until(t, "the routers know of one another", func() bool { return a.shared.LastRouters() == 2 })
	}
	running := held(t, routers[0], "m").Grant
	require.NotNil(t, running)
	polltest.Until(t, "the other router knows", func() bool {
		d := held(t, routers[1], "m")
		if d.Grant != nil {
			d.Grant.Release()
			return false
		}
		d.Waiter.Report(holdstate.Leave)
		return true
	})
	const waiters = 12 // at each router
	waiting := make([][]extproc.Decision, 2)
	for range waiters {
		for i, a := range routers {
			d := held(t, a, "m")
			require.NotNil(t, d.Waiter)
			waiting[i] = append(waiting[i], d)
		}
	}
	var order []int
	for range 2 * waiters {
		begin := time.Now()
		polltest.Until(t, "the request that runs takes its time", func() bool { return time.Since(begin) > 20*time.Millisecond })
		running.Release()
		polltest.Until(t, "one of those that wait is admitted", func() bool {
			for i := range waiting {
				for j, d := range waiting[i] {
					if s := d.Waiter.Status(); s.Grant != nil {
						running = s.Grant
						d.Waiter.Report(holdstate.Done)
						waiting[i] = append(waiting[i][:j], waiting[i][j+1:]...)
						order = append(order, i)
						return true
					}
				}
			}
			return false
		})
	}
	running.Release()
	t.Logf("admitted by router: %v", order)
	ofFirst := 0
	for _, router := range order[:waiters] {
		if router == 0 {
			ofFirst++
		}
	}
	require.InDelta(t, waiters/2, ofFirst, waiters/4, "a router does not keep what it frees for itself")
	for _, a := range routers {
		polltest.Until(t, "every count is 0", func() bool { return len(a.capacity.Occupied()) == 0 })
	}
}
