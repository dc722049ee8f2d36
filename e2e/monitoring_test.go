// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"encoding/json/v2"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/internal/polltest"
	"github.com/holdgate/holdgate/internal/shared/valkeytest"
)

// promtool runs promtool in the directory of the examples.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	c := exec.CommandContext(t.Context(), tool(t, "promtool"), args...)
	c.Dir = filepath.Join(root(t), "examples", "monitoring")
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// Prometheus reads the examples, each alert fires on its fault, and each query of the dashboard is
// valid.
func TestTheExamplesOfMonitoringAreValid(t *testing.T) {
	promtool(t, "check", "config", "prometheus.yaml")
	promtool(t, "check", "rules", "rules.yaml")
	promtool(t, "test", "rules", "rules_test.yaml")

	text, err := os.ReadFile(filepath.Join(root(t), "examples", "monitoring", "dashboard.json"))
	require.NoError(t, err)
	var d struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	require.NoError(t, json.Unmarshal(text, &d, json.MatchCaseInsensitiveNames(true)))
	type record struct {
		Record, Expr string
	}
	var queries []record
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			queries = append(queries, record{fmt.Sprint("q:", len(queries)), strings.ReplaceAll(target.Expr, "$__rate_interval", "1m")})
		}
	}
	require.Greater(t, len(queries), 30)
	asRules, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": queries}}})
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "queries.yaml")
	require.NoError(t, os.WriteFile(path, asRules, 0o600))
	promtool(t, "check", "rules", path)
}

// shortRules returns the path of the shipped rules with waits of 1 s and windows of 10 s: 15 minutes
// are too long for a test. Nothing else is changed.
func shortRules(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(t), "examples", "monitoring", "rules.yaml"))
	require.NoError(t, err)
	short := strings.NewReplacer("[15m]", "[10s]", "for: 1m", "for: 1s", "for: 30s", "for: 1s").Replace(string(text))
	path := filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.WriteFile(path, []byte(short), 0o600))
	return path
}

// fires waits until an alert fires.
func (p *prometheus) fires(alert string) {
	p.t.Helper()
	p.requireSteady(alert+" fires", `count(ALERTS{alertname="`+alert+`", alertstate="firing"})`, func(v float64) bool { return v == 1 })
}

// silent waits until no alert but these fires.
func (p *prometheus) silent(but ...string) {
	p.t.Helper()
	p.requireSteady("no other alert fires", `count(ALERTS{alertname!~"`+strings.Join(but, "|")+`", alertstate="firing"}) or vector(0)`,
		func(v float64) bool { return v == 0 })
}

// The shipped alerts fire on faults of a real router, and are silent while nothing is wrong.
func TestTheAlertsFireOnRealFaults(t *testing.T) {
	dir, valkey := socketDir(t), valkeytest.Start(t)
	s, serve, ports, front := startServeIn(t, dir, "--envoy-admin", "unix://"+filepath.Join(dir, envoy.AdminSocket),
		"--shared", valkey.URL(), "--wake-hold-max", "3", "--wake-hold-budget", "2s", "--wake-linger", "0s")
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	p := startPrometheus(t, ports["admin"], shortRules(t))
	p.fires("HoldgateMapMissing")
	admin := &site{t: t, url: "http://" + ports["admin"], admin: ports["admin"], http: newHTTPClient(t)}
	require.Equal(t, http.StatusOK, admin.putMap(`{"placements":[{"model":"m","kind":"chat","site":"here","scale_from_zero":true}]}`).status)
	p.silent()
	p.requireSteady("Envoy is up", "hivenet_envoy_up", func(v float64) bool { return v == 1 })

	// Three are held until their budget ends, the others find no place.
	var asked []<-chan result
	for range 9 {
		asked = append(asked, s.start(t.Context(), chatPath, chatBody("m", false)))
	}
	p.fires("HoldgateHoldLimitsTooLow")
	for _, answer := range asked {
		require.GreaterOrEqual(t, (<-answer).status, 400)
	}
	p.fires("HoldgateHoldBudgetTooShort")
	require.Equal(t, http.StatusAccepted, admin.post("/v1/wake/m/failed", `{"reason":"no GPU"}`).status)
	p.fires("HoldgateWakeFailing")

	engine := newEngine(t, nil)
	for range 5 {
		a := start(t, "agent", "--router", ports["agents"], "--engine", "custom", "--backend-url", "http://"+engine.addr(),
			"--health-path", "/", "--model", "m", "--capability", "llm", "--capacity", "4")
		polltest.Until(t, "the agent serves", func() bool { return strings.Contains(admin.metrics(), `hivenet_agent_slots{`) })
		require.NoError(t, a.cmd.Process.Kill())
		polltest.Until(t, "the agent is gone", func() bool { return !strings.Contains(admin.metrics(), `hivenet_agent_slots{`) })
	}
	p.fires("HoldgateReplicaFlapping")
	p.silent("HoldgateHold.*", "HoldgateWakeFailing", "HoldgateReplicaFlapping")

	valkey.Stop()
	p.fires("HoldgateSharedServerAway")
	require.NoError(t, front.Stop(5*time.Second))
	p.fires("HoldgateNoEnvoy")
	require.NoError(t, serve.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, serve.ends())
	p.fires("HoldgateRouterDown")
}

// usageEngine answers with a usage, in several chunks.
func usageEngine(w http.ResponseWriter, r *http.Request) {
	body, _ := r.Context().Value(requestBody{}).(string)
	parts := []string{`{"choices":[{"message":{"content":"\"usage\""}}],"us`, `age":{"prompt_tokens":11,"completion_tokens":7}}`}
	kind := "application/json"
	switch {
	case r.URL.Path == "/v1/messages":
		kind = "text/event-stream"
		parts = []string{
			"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":20,\"cache_read_input_tokens\":80,\"output_tokens\":1}}}\n\n",
			"event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_to", "kens\":30}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
		}
	case strings.Contains(body, `"stream":true`):
		kind = "text/event-stream"
		parts = []string{
			"data: {\"choices\":[],\"usage\":null}\n\ndata: {\"choices\":[],\"usage\":", "{\"prompt_tokens\":200,\"completion_tokens\":400}}\n\ndata: [DONE]\n\n",
		}
	}
	w.Header().Set("Content-Type", kind)
	for _, p := range parts {
		_, _ = io.WriteString(w, p)
		_ = http.NewResponseController(w).Flush()
	}
}

// What an engine reports of the tokens is counted while its answer passes, and only then.
func TestTheTokensOfRelayedAnswersAreCounted(t *testing.T) {
	s, recordOf := startAudited(t, "--wake-keepalive", "200ms")
	held := map[string]<-chan result{
		"chat":     s.start(t.Context(), chatPath, chatBody("m", false)),
		"stream":   s.start(t.Context(), chatPath, chatBody("m", true)),
		"messages": s.start(t.Context(), "/v1/messages", chatBody("m", true)),
	}
	s.metric(`hivenet_pending_demand{model="m"}`, "3")
	time.Sleep(500 * time.Millisecond) // keepalives
	s.register(hello("a", newEngine(t, usageEngine).addr(), 4, "m"))
	want := map[string][2]int{"chat": {11, 7}, "stream": {200, 400}, "messages": {100, 30}}
	for name, answer := range held {
		got := <-answer
		require.Equal(t, http.StatusOK, got.status, name)
		require.Contains(t, got.body, "usage")
		requireFields(t, recordOf(got.header.Get("X-Request-Id")), map[string]any{
			"tokens_in": want[name][0], "tokens_out": want[name][1], "decision": "hold", "status": 200,
		})
	}
	warm := s.post(chatPath, chatBody("m", false))
	require.Contains(t, warm.body, "usage")
	requireFields(t, recordOf(warm.header.Get("X-Request-Id")), map[string]any{"tokens_in": 0, "tokens_out": 0, "decision": "serve"})
	s.metric(`hivenet_tokens_total{kind="input",model="m",tenant_id="default"}`, "311")
	s.metric(`hivenet_tokens_total{kind="output",model="m",tenant_id="default"}`, "437")
	const chat = `gen_ai_operation_name="chat",gen_ai_provider_name="holdgate",gen_ai_request_model="m"`
	s.metric(`gen_ai_server_time_to_first_token_seconds_count{`+chat+`}`, "2")
	s.metric(`gen_ai_server_request_duration_seconds_count{error_type="",`+chat+`}`, "4")
	s.atRest()
}
