// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/holdstate"
)

// fakeHolds are the limits of a site whose other routers hold the same number of requests for
// each model, without keys.
type fakeHolds struct {
	limits holdstate.Limits
	others int

	mu     sync.Mutex
	counts map[string]int // what this router holds, by model
	asked  int
}

func (f *fakeHolds) Hold(model, _ string) (holdstate.SiteHold, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	h := &fakeHold{f: f, model: model}
	if !f.fits(model) {
		return h, false
	}
	h.counted = true
	f.counts[model]++
	return h, true
}

func (f *fakeHolds) WouldHold(model, _ string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fits(model)
}

func (f *fakeHolds) fits(model string) bool { return f.counts[model]+f.others < f.limits.PerModel }

// held returns what this router holds of a model, and how often it asked.
func (f *fakeHolds) held(model string) (held, asked int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counts[model], f.asked
}

type fakeHold struct {
	f       *fakeHolds
	model   string
	counted bool
}

func (h *fakeHold) Join() { h.set(true, 1) }

func (h *fakeHold) Leave() { h.set(false, -1) }

func (h *fakeHold) set(counted bool, n int) {
	h.f.mu.Lock()
	defer h.f.mu.Unlock()
	if h.counted != counted {
		h.counted = counted
		h.f.counts[h.model] += n
	}
}

func TestALimitOfHeldRequestsIsTheSites(t *testing.T) {
	t.Parallel()
	s := setup{placements: rigMap, limits: holdstate.Limits{PerModel: 3}, others: 2}
	bubble(t, s, func(r *rig) {
		site := r.o.Holds.(*fakeHolds)
		first := r.calls("").Decide(chat("m"))
		require.True(t, first.Held)
		refused := r.calls("").Decide(chat("m"))
		require.NotNil(t, refused.Refusal)
		require.Equal(t, "model_waking", refused.Refusal.Code)
		require.Equal(t, 503, refused.Refusal.Status)
		require.Equal(t, holdstate.OutcomeFull, refused.Outcome)
		require.Equal(t, 1, r.ended(holdstate.OutcomeFull), "it is counted once")
		require.Equal(t, 1, r.o.Machine.Demand("m"))

		first.Waiter.Report(holdstate.Leave)
		held, _ := site.held("m")
		require.Zero(t, held, "it is not held any more")
		again := r.calls("").Decide(chat("m"))
		require.True(t, again.Held)
		again.Waiter.Report(holdstate.Leave)
	})
}

func TestTheSiteIsAskedOnlyForWhatTheRouterWouldHold(t *testing.T) {
	t.Parallel()
	s := setup{placements: rigMap, limits: holdstate.Limits{PerModel: 3, Total: 1}, others: 1}
	bubble(t, s, func(r *rig) {
		site := r.o.Holds.(*fakeHolds)
		first := r.calls("").Decide(chat("m"))
		require.True(t, first.Held)
		require.NotNil(t, r.calls("").Decide(chat("m")).Refusal)
		require.Equal(t, 1, r.ended(holdstate.OutcomeFull), "it is counted once")
		first.Waiter.Report(holdstate.Leave)
		r.o.Machine.Fail("m", "no GPU")
		require.NotNil(t, r.calls("").Decide(chat("m")).Refusal)
		r.join("a", "eu", 1, "hour")
		require.NotNil(t, r.calls("").Decide(chat("hour")).Grant, "it is warm")
		held, asked := site.held("m")
		require.Zero(t, held)
		require.Equal(t, 1, asked)
	})
}

func TestARequestThatWaitsAgainCountsAtTheSiteAgain(t *testing.T) {
	t.Parallel()
	s := setup{placements: rigMap, others: 1}
	bubble(t, s, func(r *rig) {
		site := r.o.Holds.(*fakeHolds)
		d := r.calls("").Decide(chat("m"))
		require.True(t, d.Held)
		r.join("a", "eu", 1, "m")
		grant := d.Waiter.Status().Grant
		require.NotNil(t, grant)
		held, _ := site.held("m")
		require.Zero(t, held, "it has its slot")
		grant.Failed("it was a test", true)
		d.Waiter.Report(holdstate.Back)
		grant.Release()
		held, asked := site.held("m")
		require.Equal(t, []int{1, 1}, []int{held, asked})
		d.Waiter.Report(holdstate.Leave)
		held, _ = site.held("m")
		require.Zero(t, held)
	})
}
