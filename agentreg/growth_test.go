// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/internal/memtest"
)

// crowd is a registry with so many agents that are asleep, each in a group of its own.
func crowd(t *testing.T, n int) (r *Registry, one *registration) {
	t.Helper()
	r = New(Options{Log: zerolog.Nop()})
	time.Sleep(DefaultGroupGrace)
	for i := range n {
		one = offline(t, r, member(fmt.Sprint("a", i), 1, 1, func(h *pb.Hello) {
			h.Instance, h.Group.Name = instance(i), fmt.Sprint("gpu", i)
		}))
		one.onStatus(&pb.Status{State: pb.State_STATE_ASLEEP})
	}
	return r, one
}

func (r *Registry) dismissAll() {
	for s := range r.sessions {
		r.removeSession(s)
	}
	time.Sleep(r.opts.Liveness)
}

func TestAStatusCostsTheSameHoweverManyGroupsThereAre(t *testing.T) { //nolint:paralleltest // it counts allocations
	synctest.Test(t, func(t *testing.T) {
		r, one := crowd(t, 500)
		defer r.dismissAll()
		for name, healthy := range map[string][]bool{"nothing new": {true, true}, "health changes": {true, false}} {
			one.onStatus(&pb.Status{State: pb.State_STATE_SERVING, Healthy: !healthy[0]})
			cost := memtest.Allocated(func() {
				for i := range 100 {
					one.onStatus(&pb.Status{State: pb.State_STATE_SERVING, Healthy: healthy[i%2]})
				}
			})
			require.Less(t, cost, int64(100*8<<10), name)
		}
		cost := memtest.Allocated(func() {
			for i := range 100 {
				r.SetWanted("a0", i%2 == 0)
			}
		})
		require.Less(t, cost, int64(100*8<<10), "a need")
	})
}

func TestARegistrationCostsTheSameHoweverManyTargetsThereAre(t *testing.T) { //nolint:paralleltest // it counts allocations
	synctest.Test(t, func(t *testing.T) {
		r := New(Options{Log: zerolog.Nop()})
		defer r.dismissAll()
		for i := range 200 {
			offline(t, r, aHello(named(fmt.Sprint("a", i)), func(h *pb.Hello) {
				h.Instance, h.Models = instance(i), nil
				for m := range 64 {
					h.Models = append(h.Models, fmt.Sprint("m", i, "-", m))
				}
			}))
		}
		cost := memtest.Allocated(func() {
			for i := range 20 {
				offline(t, r, aHello(named(fmt.Sprint("b", i)), func(h *pb.Hello) { h.Instance = instance(1000 + i) }))
			}
		})
		require.Less(t, cost, int64(20*32<<10))
	})
}

// Groups that share a model are planned together: room that one of them gets may be room
// that another one needs not give.
func TestGroupsOfOneModelArePlannedTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, _ := crowd(t, 4)
		defer r.dismissAll()
		join := func(id, group string, models ...string) *registration {
			return offline(t, r, member(id, 1, 1, func(h *pb.Hello) {
				h.Instance, h.Group.Name, h.Models = instance(int(id[0])), group, models
			}))
		}
		join("x", "gpu0", "shared")
		y := join("y", "gpu1", "shared", "other")
		join("z", "gpu2", "other")
		var groups, models []string
		in := y.scope()
		for g := range in.groups {
			groups = append(groups, g.name)
		}
		for m := range in.models {
			models = append(models, m.name)
		}
		require.ElementsMatch(t, []string{"gpu0", "gpu1", "gpu2"}, groups)
		require.ElementsMatch(t, []string{"a0", "a1", "a2", "shared", "other"}, models)
	})
}
