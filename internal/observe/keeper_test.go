// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/access"
	"github.com/holdgate/holdgate/internal/memtest"
	"github.com/holdgate/holdgate/internal/wake"
)

// newMetrics makes metrics of a registry of their own. Without tenants there is the
// default one.
func newMetrics(o Options) *Metrics {
	if o.Tenants == nil {
		o.Tenants = func() []string { return []string{access.DefaultTenant} }
	}
	return NewMetrics(prometheus.NewRegistry(), o)
}

// names makes n names.
func names(prefix string, n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprint(prefix, i))
	}
	return list
}

// keeperRig is a router whose agents and models the test sets. Its Keeper runs.
type keeperRig struct {
	*Metrics
	t      *testing.T // of the bubble
	recent *wake.Recent
	now    atomic.Pointer[registered]
}

// registered are the agents of a site and the models that it knows.
type registered struct {
	agents []agentreg.AgentStatus
	known  []string
}

// bubble runs f with a site whose series are kept for 10 minutes.
func bubble(t *testing.T, o Options, f func(s *keeperRig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &keeperRig{t: t, Metrics: newMetrics(o), recent: wake.NewRecent()}
		s.leave()
		ctx, cancel := context.WithCancel(t.Context())
		go Keeper{
			Metrics: s.Metrics, Keep: 10 * time.Minute, Recent: s.recent,
			KnownModel: func(model string) bool { return slices.Contains(s.now.Load().known, model) },
			Agents:     func() []agentreg.AgentStatus { return s.now.Load().agents },
		}.Run(ctx)
		synctest.Wait()
		f(s)
		cancel()
	})
}

// pass waits for d, and until everything that happened then is done.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// join registers an agent, the only one, for one model.
func (s *keeperRig) join(to route) {
	info := agentreg.AgentInfo{Engine: to.engine, Region: to.region, Models: []string{to.model}}
	s.Serving(&info)
	s.now.Store(&registered{[]agentreg.AgentStatus{{AgentInfo: &info}}, []string{to.model}})
}

// leave ends the registration; its model is not known any more.
func (s *keeperRig) leave() { s.now.Store(&registered{}) }

func TestANameThatComesBackInTimeKeepsItsCount(t *testing.T) {
	t.Parallel()
	bubble(t, Options{}, func(s *keeperRig) {
		t := s.t
		to := route{"custom", "", "x"}
		for range 3 {
			s.join(to)
			s.routed.count(to, access.DefaultTenant)
			s.leave()
			pass(9 * time.Minute)
		}
		require.Equal(t, map[route]map[string]uint64{to: {access.DefaultTenant: 3}}, s.routed.snapshot())
	})
}

func TestTheSeriesOfTenantsAndModelsAreBounded(t *testing.T) {
	t.Parallel()
	tenants := names("t", 10_000)
	require.Len(t, zeros(tenants, 100), 1000)
	require.Len(t, zeros(tenants, 1000), 100)
	require.Len(t, zeros(tenants, 200_000), 1)
	require.Empty(t, zeros(nil, 1))

	r := newRouted("p_", func() []string { return nil })
	for i := range maxRouted {
		r.count(route{model: fmt.Sprint("m", i/1000)}, tenants[i%1000])
	}
	for _, tenant := range []string{"late", "later", tenants[0]} {
		r.count(route{model: "m0"}, tenant)
	}
	sent := r.snapshot()[route{model: "m0"}]
	require.Len(t, sent, 1001)
	require.EqualValues(t, 2, sent[otherTenant])
	require.EqualValues(t, 2, sent[tenants[0]])
}

// A registration must cost the same for one tenant and for ten thousand: those who wait
// are released after it.
func TestARegistrationMakesNoSeriesOfTenants(t *testing.T) { //nolint:paralleltest // it counts allocations
	tenants := names("t", 5000)
	m := newMetrics(Options{Tenants: func() []string { return tenants }})
	agent := &agentreg.AgentInfo{Models: names("m", 100)}
	require.Less(t, memtest.Allocated(func() { m.Serving(agent) }), int64(100*1024))
}

// The tenants of identities are not known before, and there is an end to their labels.
func TestTheLabelsOfTenantsAreBounded(t *testing.T) {
	t.Parallel()
	m := newMetrics(Options{Tenants: func() []string { return nil }, Identities: true})
	for i := range 2 * maxTenantLabels {
		name := fmt.Sprint(i)
		want := name
		if i >= maxTenantLabels {
			want = "other"
		}
		require.Equal(t, want, m.tenant(name))
	}
	require.Equal(t, "7", m.tenant("7"))
	m.Serving(&agentreg.AgentInfo{Models: []string{"m"}})
}

// A tenant stays as long as it is listed, or an identity may name it.
func TestTheSeriesOfTenantsThatAreGoneAreRemoved(t *testing.T) {
	t.Parallel()
	to := route{"custom", "", "m"}
	for identities, left := range map[bool][]string{false: {"new", "other"}, true: {"new", "old", "other"}} {
		t.Run(fmt.Sprint("identities ", identities), func(t *testing.T) {
			t.Parallel()
			var listed atomic.Pointer[[]string]
			listed.Store(&[]string{"new", "old"})
			bubble(t, Options{Identities: identities, Tenants: func() []string { return *listed.Load() }}, func(s *keeperRig) {
				t := s.t
				s.join(to)
				for _, tenant := range []string{"new", "old", otherTenant} {
					s.routed.count(to, tenant)
				}
				listed.Store(&[]string{"new"})
				pass(9 * time.Minute)
				require.Len(t, s.routed.snapshot()[to], 3)
				pass(3 * time.Minute)
				require.ElementsMatch(t, left, slices.Collect(maps.Keys(s.routed.snapshot()[to])))
			})
		})
	}
}

func TestTheSeriesOfAModelThatIsGoneAreRemoved(t *testing.T) {
	t.Parallel()
	bubble(t, Options{}, func(s *keeperRig) {
		t := s.t
		s.now.Store(&registered{known: []string{"stays"}})
		for _, model := range []string{"stays", "gone"} {
			s.Woke(model, time.Second)
			s.Queued(model, time.Second)
			s.Rejected(model, holdstate.ErrNoQueue)
			s.WakeFailed(model)
			s.Lost(&agentreg.AgentInfo{Models: []string{model}})
			s.recent.Touch(model)
		}
		series := func() []int {
			return []int{
				testutil.CollectAndCount(s.wakes), testutil.CollectAndCount(s.queued), testutil.CollectAndCount(s.rejections),
				testutil.CollectAndCount(s.failures), testutil.CollectAndCount(s.losses),
			}
		}
		pass(9 * time.Minute)
		require.Equal(t, []int{2, 2, 2, 2, 2}, series())
		pass(3 * time.Minute)
		require.Equal(t, []int{1, 1, 1, 1, 1}, series())
		require.True(t, s.recent.Within("stays", time.Hour, time.Now()))
		require.False(t, s.recent.Within("gone", time.Hour, time.Now()))
	})
}
