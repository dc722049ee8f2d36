// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/admin"
	"github.com/holdgate/holdgate/internal/backend"
	"github.com/holdgate/holdgate/internal/target"
)

// anyModels and anyKeys are what random states and requests are made of.
var (
	anyModels = []string{"m", "n", "far", "none"}
	anyKeys   = map[string]string{
		"free": "", "stays": "redirect: never", "eu": "scopes: [eu]", "only n": "models: [n]",
		"slow": "quota: {requests_per_minute: 1}", "slow at m": "quota: {per_model: {m: {requests_per_minute_per_replica: 1}}}",
		"part": "max_occupancy_share: 0.25",
	}
	anyPolicies = []string{
		"", "m: {aliases: [alias]}", "m: {max_inflight: 1}", "m: {max_inflight: 2, admit_budget_tokens: 100}, n: {max_inflight: 1}",
		"m: {steps: [{name: eu, match: {region: eu}}, {name: us, match: {region: us}}]}",
		"m: {max_inflight: 3, steps: [{name: eu, match: {region: eu}, max_tries: 1}, {name: any}]}",
	}
)

func oneOf(t *rapid.T, label string, texts ...string) string {
	return rapid.SampledFrom(texts).Draw(t, label)
}

func oneIn(t *rapid.T, n int, label string) bool { return rapid.IntRange(1, n).Draw(t, label) == 1 }

// anyMap draws a sibling map; empty: none was pushed.
func anyMap(t *rapid.T) string {
	if oneIn(t, 10, "no map") {
		return ""
	}
	placed, hints := "", ""
	for _, model := range anyModels[:3] {
		if model != "far" {
			placed += oneOf(t, model+" here", "",
				fmt.Sprintf(`,{"model": %q, "kind": "chat", "site": "here"}`, model),
				fmt.Sprintf(`,{"model": %q, "kind": "chat", "site": "here", "scale_from_zero": true}`, model),
				fmt.Sprintf(`,{"model": %q, "kind": "chat", "site": "here", "scale_from_zero": true}`, model),
				fmt.Sprintf(`,{"model": %q, "kind": "chat", "site": "here", "scale_from_zero": true, "hold_budget": "30s"}`, model))
		}
		for _, site := range []string{"b", "c"} {
			if oneIn(t, 2, model+" at "+site) {
				placed += fmt.Sprintf(`,{"model": %q, "kind": "chat", "site": %q}`, model, site)
				if state := oneOf(t, "hint", "", "warm", "cold"); state != "" {
					hints += fmt.Sprintf(`,{"model": %q, "kind": "chat", "site": %q, "state": %q, "observed_at": "2000-01-01T00:00:00Z"}`, model, site, state)
				}
			}
		}
	}
	placed += `,{"model": "always", "kind": "chat", "site": "b"}`
	if hints != "" {
		hints = hints[1:]
	}
	return `{"sites": [{"id": "b", "url": "https://b.example", "scopes": ["eu"]}, {"id": "c", "url": "https://c.example", "scopes": ["us"]}],
		"placements": [` + placed[1:] + `], "hints": [` + hints + `]}`
}

// anySetup draws the settings and the files.
func anySetup(t *rapid.T) setup {
	s := setup{
		placements: anyMap(t), policy: oneOf(t, "policy", anyPolicies...),
		limits: holdstate.Limits{
			PerModel: rapid.IntRange(1, 3).Draw(t, "held per model"), PerKey: rapid.IntRange(1, 3).Draw(t, "held per key"),
			QueueDepth: rapid.IntRange(0, 2).Draw(t, "queue depth"),
		},
	}
	s.keys = "keys:\n"
	for id, more := range anyKeys {
		if more != "" {
			more = ", " + more
		}
		s.keys += fmt.Sprintf("- {id: %q, tenant: acme, key_hash: %s%s}\n", id, hashOf(id), more)
	}
	if oneIn(t, 2, "a site") {
		s.SiteID = "here"
	}
	if oneIn(t, 2, "further routers") {
		s.others = rapid.IntRange(1, 3).Draw(t, "held there")
		s.admitted = rapid.IntRange(0, 2).Draw(t, "admitted there")
	}
	if oneIn(t, 2, "in the grace of the start") {
		s.GraceUntil = time.Now().Add(time.Hour)
	}
	if oneIn(t, 3, "a backend") {
		set, err := backend.New([]backend.Config{{
			Name: "gpu", MaxWait: 20 * time.Second,
			BackendURL: "http://192.0.2.1:8000", Engine: "vllm", Models: []string{"n"},
		}})
		require.NoError(t, err)
		s.Backends = set
	}
	return s
}

// anyQuery draws a request.
func anyQuery(t *rapid.T) admin.ExplainQuery {
	q := admin.ExplainQuery{
		Model: oneOf(t, "model", "m", "m", "m", "n", "alias", "far", "none"), Hops: rapid.IntRange(0, 2).Draw(t, "hops"),
		KeyID: oneOf(t, "key", "free", "slow", "stays", "eu", "only n", "slow", "slow at m", "part"),
	}
	if oneIn(t, 8, "another kind") {
		q.Kind = target.Rerank
	}
	return q
}

// happens draws what has happened before: replicas, requests, failed wakes, time.
func (r *rig) happens(t *rapid.T) {
	for i := range rapid.IntRange(0, 3).Draw(t, "replicas") {
		models := []string{"m"}
		if oneIn(t, 3, "of n too") {
			models = append(models, "n")
		}
		r.join(string(rune('a'+i)), oneOf(t, "region", "eu", "us"), rapid.Uint32Range(1, 2).Draw(t, "slots"), models...)
	}
	for range rapid.IntRange(0, 6).Draw(t, "requests") {
		d := r.decide(anyQuery(t))
		if d.Grant != nil && oneIn(t, 3, "its replica fails") {
			d.Grant.Failed("it was a test", true)
			d.Grant.Release()
		}
	}
	switch rapid.IntRange(0, 8).Draw(t, "then") {
	case 0:
		r.o.Machine.Fail(oneOf(t, "failed", "m", "n"), "no GPU")
	case 1:
		r.o.Machine.Drain()
	case 2:
		pass(time.Duration(rapid.IntRange(1, 60).Draw(t, "seconds")) * time.Second)
	}
}

// Whatever the state, explain has the verdict that the request then gets, and has no
// effect.
func TestExplainIsTheDecisionOfAnyRequestInAnyState(t *testing.T) {
	t.Parallel()
	seen := map[string]int{}
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(bubbleTB{t}, func(t *rapid.T) {
			ctx, end := context.WithCancel(t.Context())
			defer synctest.Wait()
			defer end()
			r := newRig(ctx, t, anySetup(t))
			r.happens(t)
			for range 6 { // each leaves another state to the next
				q := anyQuery(t)
				e := r.explain(q)
				require.Equal(t, e, r.explain(q), "it has no effect")
				d := r.decide(q)
				if d.Refusal != nil {
					require.Equal(t, []any{d.Refusal.Message, d.Refusal.RetryAfter}, []any{e.Message, e.RetryAfter})
				}
				require.Equal(t, said(e), did(d), "%+v", e)
				seen[e.Decision]++
				if strings.Contains(e.Steps[6].Why, errSiteFull.Error()) {
					seen["full"]++
				}
			}
		})
	})
	for _, want := range []string{"serve", "queue", "hold", "redirect", "refuse", "full"} {
		require.NotZero(t, seen[want], "%s in %v", want, seen)
	}
}

// bubbleTB hides the deadline of the test, which a bubble may not ask for.
type bubbleTB struct{ rapid.TB }
