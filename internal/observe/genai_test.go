// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/extproc/body"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/access"
	"github.com/holdgate/holdgate/internal/audit"
	"github.com/holdgate/holdgate/internal/refusal"
	"github.com/holdgate/holdgate/internal/target"
)

var (
	chatEndpoint = &extproc.Endpoint{Path: "/v1/chat/completions", Kind: target.Chat, API: refusal.OpenAI}
	anyGrant     = struct{ holdstate.Grant }{}
)

// recordOf is the record of a request that took 2 s.
func recordOf(model string, e *extproc.Endpoint, status int, changes ...func(*extproc.Record)) *extproc.Record {
	r := &extproc.Record{
		Method: "POST", Request: extproc.Request{Endpoint: e, Fields: body.Fields{Model: model}}, Status: status, Duration: 2 * time.Second,
	}
	for _, change := range changes {
		change(r)
	}
	return r
}

// seriesOf returns the labels of each series of a metric, without the provider, and its count.
func seriesOf(t *testing.T, reg *prometheus.Registry, name string) map[string]uint64 {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	all := map[string]uint64{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				if l.GetName() != labelProvider {
					labels = append(labels, l.GetValue())
				} else {
					require.Equal(t, genAIProvider, l.GetValue())
				}
			}
			all[strings.Join(labels, " ")] = m.GetHistogram().GetSampleCount()
		}
	}
	return all
}

func TestTheLabelsOfTheGenAIMetrics(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg, Options{
		Tenants: func() []string { return []string{access.DefaultTenant} }, Known: func(model string) bool { return model == "m" },
	})
	first := func(r *extproc.Record) { r.FirstToken = time.Second }
	granted := func(r *extproc.Record) { r.Grant = anyGrant }
	code := func(code string) func(*extproc.Record) { return func(r *extproc.Record) { r.ErrorCode = code } }
	for _, r := range []*extproc.Record{
		recordOf("m", chatEndpoint, 200, granted, first),
		recordOf("m", chatEndpoint, 200, granted),
		recordOf("m", chatEndpoint, 500, granted, first),
		recordOf("m", chatEndpoint, 499),
		recordOf("m", chatEndpoint, 503, code("model_waking")),
		recordOf("m", chatEndpoint, 0, granted, code(extproc.CodeRecordLost)),
		recordOf("m", &extproc.Endpoint{Path: "/v1/completions", API: refusal.OpenAI}, 200),
		recordOf("m", &extproc.Endpoint{Path: "/v1/responses", API: refusal.Responses}, 200),
		recordOf("m", &extproc.Endpoint{Path: "/v1/messages", API: refusal.Anthropic}, 200),
		recordOf("m", &extproc.Endpoint{Path: "/v1/messages/count_tokens", API: refusal.Anthropic, CountTokens: true}, 200),
		recordOf("m", &extproc.Endpoint{Path: "/v1/embeddings", Kind: target.Embedding, API: refusal.OpenAI}, 200),
		recordOf("m", &extproc.Endpoint{Path: "/v1/rerank", Kind: target.Rerank, API: refusal.OpenAI}, 200),
		// What clients name is no label, and a request without a model is none of these.
		recordOf("x\n", chatEndpoint, 404, code("model_not_found")),
		recordOf("y", chatEndpoint, 404, code("model_not_found")),
		recordOf("", chatEndpoint, 401, code("unauthorized")),
		recordOf("m", nil, 404, code("not_found")),
		recordOf("m", chatEndpoint, 307, func(r *extproc.Record) { r.Verdict = extproc.VerdictRedirect }),
	} {
		m.ended(r)
	}
	require.Equal(t, map[string]uint64{
		" chat m": 4, "500 chat m": 1, "499 chat m": 1, "model_waking chat m": 1, "record_lost chat m": 1,
		" text_completion m": 1, " count_tokens m": 1, " embeddings m": 1, " rerank m": 1, "model_not_found chat other": 2,
	}, seriesOf(t, reg, "gen_ai_server_request_duration_seconds"))
	require.Equal(t, map[string]uint64{"chat m": 1}, seriesOf(t, reg, "gen_ai_server_time_to_first_token_seconds"))

	m.remove("m")
	require.Equal(t, map[string]uint64{"model_not_found chat other": 2}, seriesOf(t, reg, "gen_ai_server_request_duration_seconds"))
	require.Empty(t, seriesOf(t, reg, "gen_ai_server_time_to_first_token_seconds"))
	m.ended(recordOf("m", chatEndpoint, 200))
	require.EqualValues(t, 1, seriesOf(t, reg, "gen_ai_server_request_duration_seconds")[" chat m"], "it begins again")
}

// Series are made while those of models that are gone are removed.
func TestSeriesAreMadeAndRemovedAtOnce(t *testing.T) {
	t.Parallel()
	m := newMetrics(Options{Known: func(string) bool { return true }})
	unknown := func(string) bool { return false }
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for i := range 2000 {
				m.ended(recordOf(fmt.Sprint("m", i%7), chatEndpoint, 400+i%50, used("", 1, 1)))
			}
		})
	}
	for range 2000 {
		m.models.forget(time.Now(), time.Now().Add(time.Hour), unknown, m.remove)
	}
	all.Wait()
	m.models.forget(time.Now(), time.Now().Add(time.Hour), unknown, m.remove)
	require.Empty(t, m.models.absent)
}

func used(tenant string, in, out int64) func(*extproc.Record) {
	return func(r *extproc.Record) {
		r.Request.Caller.TenantID, r.Usage = tenant, body.Usage{Input: in, Output: out, Known: true}
	}
}

func TestTheTokensOfTenantsAreCounted(t *testing.T) {
	t.Parallel()
	m := newMetrics(Options{Prefix: "p_", Tenants: func() []string { return []string{"acme"} }})
	m.ended(recordOf("m", chatEndpoint, 200, used("acme", 5, 7)))
	m.ended(recordOf("m", chatEndpoint, 499, used("acme", 5, 0)))
	m.ended(recordOf("m", chatEndpoint, 200))
	m.ended(recordOf("n", chatEndpoint, 200, used("", 1, 2)))
	require.NoError(t, testutil.CollectAndCompare(m.usage, strings.NewReader(`
# HELP p_tokens_total Tokens of requests whose answers the router relayed, as the engines report them.
# TYPE p_tokens_total counter
p_tokens_total{kind="input",model="m",tenant_id="acme"} 10
p_tokens_total{kind="input",model="n",tenant_id="default"} 1
p_tokens_total{kind="output",model="m",tenant_id="acme"} 7
p_tokens_total{kind="output",model="n",tenant_id="default"} 2
`)))
	m.remove("n")
	require.Equal(t, 2, testutil.CollectAndCount(m.usage))
}

// There is an end to the series, and a tenant that is gone loses its own.
func TestTheSeriesOfTokensAreBounded(t *testing.T) {
	t.Parallel()
	u := newTokens("x")
	for i := range maxRouted + 10 {
		u.count("m", fmt.Sprint(i), body.Usage{Input: 1})
	}
	require.Len(t, u.by, maxRouted+1)
	require.EqualValues(t, 10, u.by[tokenLabels{"m", otherTenant}].input)

	now := time.Now()
	onlyThis := func(tenant string) bool { return tenant == "7" }
	u.forget(now, now.Add(-time.Minute), onlyThis)
	require.Len(t, u.by, maxRouted+1)
	u.forget(now.Add(2*time.Minute), now.Add(time.Minute), onlyThis)
	require.Len(t, u.by, 1)
}

// BenchmarkEnded is what the end of a request costs that Envoy carried.
func BenchmarkEnded(b *testing.B) {
	m := NewMetrics(prometheus.NewRegistry(), Options{Tenants: func() []string { return nil }})
	none, err := audit.Open("", audit.Options{})
	require.NoError(b, err)
	o := Observer{Metrics: m, Audit: none, Log: zerolog.Nop()}
	r := recordOf("m", chatEndpoint, 200)
	r.Grant = nil
	b.ReportAllocs()
	for b.Loop() {
		o.Metrics.ended(r)
	}
}
