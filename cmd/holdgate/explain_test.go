// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/admin"
	"github.com/holdgate/holdgate/internal/target"
	"github.com/holdgate/holdgate/sitemap"
)

// runAgainst runs holdgate with args against an API that is given by d.
func runAgainst(t *testing.T, d admin.Deps, args ...string) (string, error) {
	t.Helper()
	d.Maps, d.Metrics, d.Log = sitemap.NewStore("here", nil), prometheus.NewRegistry(), zerolog.Nop()
	d.Ready = func() string { return "" }
	s := httptest.NewServer(admin.Handler(d))
	defer s.Close()
	var out bytes.Buffer
	cmd := newRootCommand()
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(append(args, "--admin", s.URL))
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func explains(e admin.Explanation, asked *admin.ExplainQuery) admin.Deps {
	return admin.Deps{Explain: func(q admin.ExplainQuery) (*admin.Explanation, error) {
		*asked = q
		return &e, nil
	}}
}

func TestExplainPrintsTheDecisionAndItsReasons(t *testing.T) {
	t.Parallel()
	var asked admin.ExplainQuery
	d := explains(admin.Explanation{
		Decision: admin.DecisionRedirect, Status: http.StatusTemporaryRedirect, Site: "b", URL: "https://b.example",
		Steps: []admin.Step{
			{Step: "alias", Why: "x is an alias of m"},
			{Step: "redirect", Taken: true, Why: "b: the model is warm at a home site of the key"},
			{Step: "hold", Why: "not reached"},
		},
		Siblings: []sitemap.Candidate{
			{Site: "b", InScope: true, Home: 1, State: "warm", Chosen: true, Why: "it is there"},
			{Site: "far", Why: "out of scope"},
		},
	}, &asked)
	out, err := runAgainst(t, d, "explain", "--model", "x", "--kind", "embedding", "--key", "acme", "--hops", "1")
	require.NoError(t, err)
	require.Equal(t, admin.ExplainQuery{Model: "x", Kind: target.Embedding, KeyID: "acme", Hops: 1}, asked)
	require.Equal(t, `redirect: 307 to b at https://b.example

  alias     x is an alias of m
> redirect  b: the model is warm at a home site of the key
  hold      not reached

SIBLING  HOME  STATE  WHY
b        1     warm   it is there
far      -     -      out of scope
`, out)
}

func TestExplainPrintsEachDecision(t *testing.T) {
	t.Parallel()
	for want, e := range map[string]admin.Explanation{
		"serve\n\n":                                {Decision: admin.DecisionServe},
		"queue: served when a slot is free\n\n":    {Decision: admin.DecisionQueue},
		"hold: for at most 30s\n\n":                {Decision: admin.DecisionHold, HoldBudget: "30s"},
		"refuse: 404 model_not_found: it sank\n\n": {Decision: admin.DecisionRefuse, Status: 404, Code: "model_not_found", Message: "it sank"},
		"refuse: 503 draining: bye (retry-after: 5)\n\n": {
			Decision: admin.DecisionRefuse, Status: 503, Code: "draining", Message: "bye", RetryAfter: 5,
		},
	} {
		out, err := runAgainst(t, explains(e, new(admin.ExplainQuery)), "explain", "--model", "m")
		require.NoError(t, err)
		require.Equal(t, want, out)
	}
	for destination, want := range map[string]string{"replica": "serve\n\n", "route": "serve\n\nfrom a gateway it is sent on by the destination route\n\n"} {
		out, err := runAgainst(t, explains(admin.Explanation{Decision: admin.DecisionServe, Destination: destination}, new(admin.ExplainQuery)), "explain", "--model", "m")
		require.NoError(t, err)
		require.Equal(t, want, out)
	}
	out, err := runAgainst(t, explains(admin.Explanation{Model: "m"}, new(admin.ExplainQuery)), "explain", "--model", "m", "--json")
	require.NoError(t, err)
	require.JSONEq(t, `{"model":"m","kind":"","hops":0,"decision":"","steps":[]}`, out)
}

func TestExplainWithoutAGoodQuestion(t *testing.T) {
	t.Parallel()
	d := explains(admin.Explanation{}, new(admin.ExplainQuery))
	_, err := runAgainst(t, d, "explain")
	require.EqualError(t, err, "--model is required")
	require.Equal(t, 2, exitCode(err))
	_, err = runAgainst(t, d, "explain", "--model", "m", "--kind", "video")
	require.ErrorContains(t, err, "video")
	require.Equal(t, 1, exitCode(err))
}

func TestWakeNeedsItsModel(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"wake"}, {"wake", "m", "n"}} {
		_, err := runAgainst(t, admin.Deps{}, args...)
		require.EqualError(t, err, "needs the model: holdgate wake MODEL")
		require.Equal(t, 2, exitCode(err))
	}
}

func TestStatusPrintsTables(t *testing.T) {
	t.Parallel()
	d := admin.Deps{Status: func() *admin.Status {
		return &admin.Status{
			NotReady: "it rains", SiteID: "here", InFlight: 3,
			Map:      &admin.MapStatus{Generation: 7, Source: "pushed", AgeSeconds: 90, Models: 1, Holdable: 1},
			Models:   []admin.ModelStatus{{Model: "llama", State: "waking", Asleep: 2, Waking: true, Demand: 4, Wanted: true, Waits: "waits for room", Destination: "route"}},
			Gateways: []admin.GatewayStatus{{Envoy: "10.0.0.1", Requests: 7, LastSeen: time.Now(), Log: true}, {Envoy: "10.0.0.2", Requests: 1, LastSeen: time.Now().Add(-time.Minute)}},
			Agents: []admin.AgentStatus{
				{ID: "a-1", State: "serving", Routing: true, Healthy: true, Models: []string{"llama", "m"}, Kinds: []string{"chat"}, Address: "[::1]:8000", Engine: "vllm", Slots: 8, InFlight: 3, Signals: admin.Signals{Running: new(uint32(4)), Waiting: new(uint32(1)), KVUse: new(0.416)}},
				{ID: "a-2", State: "asleep", Models: []string{"m"}, Address: "10.0.0.1:80", Engine: "custom", Slots: 1, Error: "no\nGPU"},
				{ID: "a-3", State: "serving", Healthy: true, Models: []string{"m"}, Address: "10.0.0.2:80", Engine: "custom", Slots: 1, InFlight: 1, Group: "gpu0", Closing: true},
			},
		}
	}}
	out, err := runAgainst(t, d, "status")
	require.NoError(t, err)
	require.Equal(t, `router    not ready: it rains
site      here
map       generation 7, pushed 1m30s ago, 1 model of which 1 may be held here, 0 hints
requests  3 in flight

MODEL  STATE   SERVING  ASLEEP  AGENT WOKEN  DEMAND  WANTED  DESTINATION  NOTE
llama  waking  0        2       yes          4       yes     route        waits for room

AGENT  STATE    ROUTING  IN USE  ADDRESS      ENGINE  LOAD                          MODELS   KINDS  NOTE
a-1    serving  yes      3/8     [::1]:8000   vllm    4 running, 1 waiting, KV 42%  llama,m  chat   -
a-2    asleep   no       0/1     10.0.0.1:80  custom  -                             m               the last wake failed: "no\nGPU"
a-3    serving  no       1/1     10.0.0.2:80  custom  -                             m               makes room in group gpu0

GATEWAY   REQUESTS  LAST      ACCESS LOG  NOTE
10.0.0.1  7         0s ago    yes         -
10.0.0.2  1         1m0s ago  no          its requests have no slots once they are sent on
`, out)
	out, err = runAgainst(t, admin.Deps{Status: func() *admin.Status { return &admin.Status{Ready: true} }}, "status")
	require.NoError(t, err)
	require.Equal(t, "router    ready\nsite      none: nothing is redirected, and only models of backends are held\nmap       none\nrequests  0 in flight\n", out)
	out, err = runAgainst(t, d, "status", "--json")
	require.NoError(t, err)
	require.Contains(t, out, `"not_ready": "it rains"`)
}

func TestExplainSaysWhoseCountsItSpeaksOf(t *testing.T) {
	t.Parallel()
	for scope, want := range map[string]string{
		"":                "",
		admin.ScopeSite:   "are those of all routers of the site",
		admin.ScopeRouter: "are those of this router, because the server of --shared does not answer",
	} {
		out, err := runAgainst(t, explains(admin.Explanation{Decision: admin.DecisionServe, Scope: scope}, &admin.ExplainQuery{}), "explain", "--model", "m")
		require.NoError(t, err)
		require.Contains(t, out, want)
		require.Equal(t, want != "", strings.Contains(out, "hold limits"))
	}
}
