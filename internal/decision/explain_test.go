// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/access"
	"github.com/holdgate/holdgate/internal/admin"
	"github.com/holdgate/holdgate/internal/target"
)

const explainMap = `{"generation": 7,
	"sites": [{"id": "b", "url": "https://b.example", "scopes": ["eu"]}, {"id": "c", "url": "https://c.example", "scopes": ["us"]}],
	"placements": [
		{"model": "m", "kind": "chat", "site": "here", "scale_from_zero": true},
		{"model": "cold", "kind": "chat", "site": "here", "scale_from_zero": true, "hold_budget": "30s"},
		{"model": "cold", "kind": "chat", "site": "b"}, {"model": "cold", "kind": "chat", "site": "c"},
		{"model": "both", "kind": "chat", "site": "here", "scale_from_zero": true},
		{"model": "both", "kind": "chat", "site": "b"}, {"model": "both", "kind": "chat", "site": "c"},
		{"model": "fixed", "kind": "chat", "site": "here"},
		{"model": "far", "kind": "chat", "site": "b"}],
	"hints": [
		{"model": "cold", "kind": "chat", "site": "b", "state": "cold", "observed_at": "2000-01-01T00:00:00Z"},
		{"model": "cold", "kind": "chat", "site": "c", "state": "cold", "observed_at": "2000-01-01T00:00:00Z"},
		{"model": "both", "kind": "chat", "site": "c", "state": "warm", "observed_at": "2000-01-01T00:00:00Z"}]}`

var explainKeys = map[string]string{
	"free": "", "other": "models: [other]", "stays": "redirect: never", "eu": "scopes: [eu]", "nowhere": "scopes: [mars]",
	"slow": "quota: {requests_per_minute: 1}", "late": "expires: 1999-01-01",
}

// explained is a site with explainMap, a key for each of explainKeys and an alias.
func explained() setup {
	var keys strings.Builder
	keys.WriteString("keys:\n")
	for id, more := range explainKeys {
		fmt.Fprintf(&keys, "- {id: %s, tenant: acme, key_hash: %s", id, hashOf(id))
		if more != "" {
			keys.WriteString(", " + more)
		}
		keys.WriteString("}\n")
	}
	return setup{keys: keys.String(), placements: explainMap, policy: "m: {aliases: [alias]}"}
}

func (r *rig) explain(q admin.ExplainQuery) *admin.Explanation {
	e, err := r.Explain(q)
	require.NoError(r.t, err)
	taken := 0
	for i, s := range e.Steps {
		require.NotEmpty(r.t, s.Why, s.Step)
		require.Equal(r.t, taken > 0, s.Why == "not reached", "%d %+v", i, e)
		if s.Taken {
			taken++
		}
	}
	require.Equal(r.t, 1, taken, "%+v", e)
	require.Len(r.t, e.Steps, 8)
	return e
}

// decide is Decide for a request as explain describes it.
func (r *rig) decide(q admin.ExplainQuery) extproc.Decision {
	c := &call{d: r.Decider, key: r.o.Keys.Current().ByID(q.KeyID), hops: q.Hops}
	request := chat(c.Resolve(q.Model))
	request.Endpoint = &extproc.Endpoint{Kind: q.Kind}
	return c.Decide(request)
}

// did is a decision as said has it.
func did(d extproc.Decision) string {
	switch {
	case d.Grant != nil:
		return "serve"
	case d.Held:
		return "hold " + d.Budget.String()
	case d.Waiter != nil:
		return "queue"
	case d.Redirect != nil:
		return "redirect " + d.Redirect.Site
	}
	return fmt.Sprintf("refuse %d %s", d.Refusal.Status, d.Refusal.Code)
}

// giveBack ends what a decision began.
func giveBack(d extproc.Decision) {
	if d.Grant != nil {
		d.Grant.Release()
	}
	if d.Waiter != nil {
		d.Waiter.Report(holdstate.Drain)
	}
}

func said(e *admin.Explanation) string {
	switch e.Decision {
	case admin.DecisionRefuse:
		return fmt.Sprintf("refuse %d %s", e.Status, e.Code)
	case admin.DecisionRedirect:
		return "redirect " + e.Site
	case admin.DecisionHold:
		return "hold " + e.HoldBudget
	}
	return e.Decision
}

// Tokens are counted where the request itself would be served, and never held.
func TestTokensAreCountedWhereTheRequestWouldGo(t *testing.T) {
	t.Parallel()
	bubble(t, explained(), func(r *rig) {
		for model, want := range map[string][2]string{
			"cold": {"hold 30s", "refuse 404 model_not_found"}, // cold at its siblings too
			"m":    {"hold 5m0s", "refuse 404 model_not_found"},
			"both": {"redirect c", "redirect c"},
			"far":  {"redirect b", "redirect b"},
		} {
			for i, countTokens := range []bool{false, true} {
				request := chat(model)
				request.Endpoint = &extproc.Endpoint{Kind: target.Chat, CountTokens: countTokens}
				d := r.calls("free").Decide(request)
				require.Equal(r.t, want[i], did(d), "%s, counting tokens: %t", model, countTokens)
				giveBack(d)
			}
		}
	})
}

// compareAll compares every model, key and number of hops, and counts the decisions.
func (r *rig) compareAll(seen map[string]int) {
	for _, model := range []string{"m", "alias", "cold", "both", "fixed", "far", "none", "hour"} {
		for key := range explainKeys {
			if key == "late" {
				continue // it is not authenticated, so nothing is decided
			}
			for hops := range 3 {
				for _, kind := range []target.Kind{target.Chat, target.Rerank} {
					q := admin.ExplainQuery{Model: model, Kind: kind, KeyID: key, Hops: hops}
					e := r.explain(q)
					require.Equal(r.t, e, r.explain(q), "asking changes nothing")
					d := r.decide(q)
					require.Equal(r.t, said(e), did(d), "%+v", e)
					giveBack(d)
					seen[said(e)]++
				}
			}
		}
	}
}

// claim returns the claim of a request without a key.
func (r *rig) claim(t target.Target) holdstate.Claim {
	a := r.o.Capacity.Attempts(t, access.Anonymous(), 0)
	return &a
}

// Whatever the state, the explanation is that of the decision.
func TestExplainSaysWhatDecideDoes(t *testing.T) {
	t.Parallel()
	seen := map[string]int{}
	s := explained()
	s.limits = holdstate.Limits{PerModel: 1, QueueDepth: 1}
	s.GraceUntil = time.Date(2000, 1, 1, 0, 0, 3, 0, time.UTC)
	bubble(t, s, func(r *rig) {
		target := target.Target{Model: "m"}
		r.compareAll(seen) // in the grace of the start
		pass(4 * time.Second)
		r.compareAll(seen)

		w, err := r.o.Machine.Hold(holdstate.Request{Target: target, Claim: r.claim(target)})
		require.NoError(t, err)
		r.compareAll(seen) // the only place is taken
		w.Report(holdstate.Drain)
		r.o.Machine.Fail("m", "no GPU")
		r.compareAll(seen)
		e := r.explain(admin.ExplainQuery{Model: "m", KeyID: "free"})
		require.Contains(t, e.Message, "could not be woken: no GPU")

		r.join("a", "", 4, "m", "fixed")
		r.compareAll(seen)
		for range 4 {
			_, outcome := r.o.Registry.TakeFrom(target, nil)
			require.Equal(t, agentreg.Taken, outcome)
		}
		r.compareAll(seen) // full
		w, err = r.o.Machine.Queue(holdstate.Request{Target: target, Claim: r.claim(target)})
		require.NoError(t, err)
		r.compareAll(seen) // and the queue as well
		w.Report(holdstate.Drain)
		pass(time.Minute) // the hints are stale
		r.compareAll(seen)
		r.o.Machine.Drain()
		r.compareAll(seen)
	})
	for _, want := range []string{
		"serve", "queue", "hold 5m0s", "hold 30s", "redirect b", "redirect c", "refuse 403 model_forbidden", "refuse 404 model_not_found",
		"refuse 429 rate_limit_exceeded", "refuse 503 draining", "refuse 503 model_waking", "refuse 503 no_capacity", "refuse 503 registry_warming",
	} {
		require.NotZero(t, seen[want], "%s in %v", want, seen)
	}
}

func TestExplainNamesWhatCannotBeAsked(t *testing.T) {
	t.Parallel()
	bubble(t, explained(), func(r *rig) {
		_, err := r.Explain(admin.ExplainQuery{Model: "m", KeyID: "nobody"})
		require.ErrorIs(t, err, admin.ErrQuery)
		require.ErrorContains(t, err, `"nobody"`)
		for id, why := range map[string]string{"": "without a key", "late": "expired"} {
			e := r.explain(admin.ExplainQuery{Model: "m", KeyID: id})
			require.Equal(t, "refuse 401 unauthorized", said(e))
			require.Contains(t, e.Steps[0].Why, why)
		}
	})
	bubble(t, setup{SiteID: "here"}, func(r *rig) {
		_, err := r.Explain(admin.ExplainQuery{Model: "m", KeyID: "free"})
		require.ErrorIs(t, err, admin.ErrQuery)
		e := r.explain(admin.ExplainQuery{Model: "m"})
		require.Equal(t, "refuse 503 map_not_loaded", said(e))
		require.Equal(t, 5, e.RetryAfter)
	})
	bubble(t, setup{}, func(r *rig) {
		require.Equal(t, "refuse 404 model_not_found", said(r.explain(admin.ExplainQuery{Model: "m"})))
	})
}

func TestExplainHasTheFacts(t *testing.T) {
	t.Parallel()
	bubble(t, explained(), func(r *rig) {
		pass(2 * time.Second)
		e := r.explain(admin.ExplainQuery{Model: "alias", KeyID: "free"})
		require.Equal(t, []string{"m", "chat", "free", "acme"}, []string{e.Model, e.Kind, e.KeyID, e.Tenant})
		require.Equal(t, []admin.Step{
			{Step: "key", Why: "the key is good"},
			{Step: "alias", Why: "alias is an alias of m"},
			{Step: "allowlist", Why: "the caller may use the model"},
			{Step: "served_here", Why: "no replica of the model is in routing for this kind"},
			{Step: "map", Why: "generation 7, pushed 2s ago"},
			{Step: "redirect", Why: "the map places the model at no other site for this kind"},
			{Step: "hold", Taken: true, Why: "the map places the model here with scale_from_zero; distinct requests that wait for it: 0"},
			{Step: "not_served", Why: "not reached"},
		}, e.Steps)

		e = r.explain(admin.ExplainQuery{Model: "both", KeyID: "free"})
		require.Equal(t, []string{"c", "https://c.example"}, []string{e.Site, e.URL})
		require.Equal(t, 307, e.Status)
		require.Len(t, e.Siblings, 2)
		e = r.explain(admin.ExplainQuery{Model: "both", KeyID: "eu"})
		require.Equal(t, "redirect b", said(e))
		require.Equal(t, "redirect", e.Steps[5].Step)
		require.Contains(t, e.Steps[5].Why, "b: ")

		agent := r.join("a", "", 4, "m")
		e = r.explain(admin.ExplainQuery{Model: "m", KeyID: "free"})
		require.Equal(t, "replicas in routing: 1, with 4 of 4 slots free", e.Steps[3].Why)
		agent.Offer(0)
		e = r.explain(admin.ExplainQuery{Model: "m", KeyID: "free"})
		require.Contains(t, e.Steps[3].Why, "replicas in routing: 1, with 0 slots for this router, which gets slots when requests wait here")
	})
}

func TestExplainCountsTheHoldsOfTheKey(t *testing.T) {
	t.Parallel()
	bubble(t, setup{keys: oneKey(""), placements: rigMap, limits: holdstate.Limits{PerKey: 1}}, func(r *rig) {
		held := r.calls(testKey).Decide(chat("m")).Waiter
		require.Equal(t, "refuse 503 model_waking", said(r.explain(admin.ExplainQuery{Model: "m", KeyID: "k"})))
		held.Report(holdstate.Leave)
		require.Equal(t, "hold 5m0s", said(r.explain(admin.ExplainQuery{Model: "m", KeyID: "k"})))
	})
}

func TestExplainNamesASimilarModel(t *testing.T) {
	t.Parallel()
	bubble(t, explained(), func(r *rig) {
		for asked, want := range map[string]string{
			"fixedd":  "; is fixed meant?",
			"FIXED":   "; is fixed meant?",
			"aliass":  "; is alias meant?",
			"gpt-4o":  "",
			"x":       "",
			"boht":    "",
			"far":     "",
			"fixed/1": "; is fixed meant?",
		} {
			e := r.explain(admin.ExplainQuery{Model: asked, KeyID: "nowhere"})
			require.Equal(t, "no step before was taken"+want, e.Steps[7].Why, asked)
		}
	})
}

func TestExplainNamesTheKindThatAModelIsHereFor(t *testing.T) {
	t.Parallel()
	bubble(t, explained(), func(r *rig) {
		const none = "no replica of the model is in routing for this kind"
		for _, c := range []struct {
			model string
			kind  target.Kind
			want  string
		}{
			{"fixed", target.Rerank, none + ", which is rerank; it is here for the kind chat: is --kind chat meant?"},
			{"fixed", target.Chat, none},
			{"far", target.Rerank, none},
		} {
			e := r.explain(admin.ExplainQuery{Model: c.model, Kind: c.kind, KeyID: "nowhere"})
			require.Equal(t, c.want, e.Steps[3].Why, c.model)
		}
	})
}
