// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// startAudited starts a site with an audit file.
func startAudited(t *testing.T, flags ...string) (*site, func(id string) map[string]any) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "audit.log")
	s := startSite(t, append(flags, "--audit-file", path)...)
	s.audit = path
	return s, s.recordOf
}

// recordOf waits for the record of a request.
func (s *site) recordOf(id string) map[string]any {
	s.t.Helper()
	var found map[string]any
	s.eventually("the record of "+id, func() bool {
		text, err := os.ReadFile(s.audit)
		require.NoError(s.t, err)
		for line := range strings.Lines(string(text)) {
			var rec map[string]any
			require.NoError(s.t, json.Unmarshal([]byte(line), &rec), line)
			if rec["request_id"] == id {
				require.Nil(s.t, found, "two records of one request")
				found = rec
			}
		}
		return found != nil
	})
	return found
}

// requireFields requires that a record has the given fields.
func requireFields(t *testing.T, rec map[string]any, want map[string]any) {
	t.Helper()
	for name, value := range want {
		require.EqualValues(t, value, rec[name], "%s in %v", name, rec)
	}
	require.Equal(t, "127.0.0.1", rec["source_ip"], "%v", rec)
}

func TestTheStatusOnRecordIsTheRealOne(t *testing.T) {
	s, recordOf := startAudited(t, "--wake-keepalive", "100ms")
	e := newEngine(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	id := uuid.NewString()

	// The hold expires after status 200 was sent.
	require.Equal(t, http.StatusOK, s.post(chatPath, chatBody("short", true), "X-Request-Id", id).status)
	requireFields(t, recordOf(id), map[string]any{
		"decision": "hold", "outcome": "expired", "status": 503, "wire_status": 200, "error_code": "model_waking", "model": "short",
		"kind": "chat", "path": chatPath, "tenant_id": "default", "agent_id": "", "upstream": "",
	})

	// A client that disconnects before any answer.
	id = uuid.NewString()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.Error(t, (<-s.start(ctx, chatPath, chatBody("m", false), "X-Request-Id", id)).err)
	rec := recordOf(id)
	require.EqualValues(t, 499, rec["status"], "%v", rec)
	require.EqualValues(t, 0, rec["wire_status"], "%v", rec)
	require.Equal(t, "disconnected", rec["outcome"])

	// A refused request with an id that is not a UUID.
	r := s.post(chatPath, "{", "X-Request-Id", "mine")
	require.Equal(t, http.StatusBadRequest, r.status)
	requireFields(t, recordOf(recordID(t, s, "request_invalid")), map[string]any{"decision": "refuse", "status": 400, "wire_status": 400, "outcome": ""})

	// A natively served request, whose record comes from Envoy.
	s.register(hello("a", e.addr(), 1, "m"))
	id = uuid.NewString()
	require.Equal(t, http.StatusTeapot, s.post(chatPath, chatBody("m", false), "X-Request-Id", id, "X-Client-Request-Id", "client's own",
		"Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").status)
	requireFields(t, recordOf(id), map[string]any{
		"decision": "serve", "outcome": "", "status": 418, "wire_status": 418, "error_code": "", "agent_id": "a", "upstream": e.addr(),
		"attempts": 1, "client_request_id": "client's own", "trace_id": "0af7651916cd43dd8448eb211c80319c", "bytes_in": len(chatBody("m", false)),
	})
	metrics := s.metrics()
	for _, labels := range []string{
		`method="POST",route="/v1/chat/completions",status_code="503"`, `method="POST",route="/v1/chat/completions",status_code="499"`,
		`method="POST",route="/v1/chat/completions",status_code="400"`, `method="POST",route="/v1/chat/completions",status_code="418"`,
	} {
		require.Contains(t, metrics, `http_server_request_duration_seconds_count{`+labels+`} 1`)
	}
	s.atRest()
}

// Many clients close the connection at the last event. Whether such a client missed
// something is known if the answer is relayed; for an answer that Envoy carries, only
// if the engine had ended it.
func TestAClientThatHangsUpAtTheLastEvent(t *testing.T) {
	s, recordOf := startAudited(t)
	e := newEngine(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {}\n\ndata: [DONE]\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	for n, status := range []int{http.StatusOK, 499} {
		id := uuid.NewString()
		ctx, hangUp := context.WithCancel(t.Context())
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+chatPath, strings.NewReader(chatBody("m", true)))
		require.NoError(t, err)
		r.Header.Set("X-Request-Id", id)
		done := make(chan struct{})
		go func() {
			defer close(done)
			resp, err := s.http.Do(r)
			if err != nil {
				return
			}
			defer resp.Body.Close()
			last := false
			for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
				if last && lines.Text() == "" {
					hangUp()
				}
				last = lines.Text() == "data: [DONE]"
			}
		}()
		if n == 0 {
			s.metric(`hivenet_pending_demand{model="m"}`, "1")
			s.register(hello("a", e.addr(), 1, "m"))
		}
		<-done
		hangUp()
		rec := recordOf(id)
		require.EqualValues(t, status, rec["status"], "%v", rec)
		require.EqualValues(t, http.StatusOK, rec["wire_status"], "%v", rec)
	}
	s.atRest()
}

// recordID returns the id that replaced a client's own id.
func recordID(t *testing.T, s *site, code string) string {
	t.Helper()
	var id string
	s.eventually("a record with "+code, func() bool {
		text, err := os.ReadFile(s.audit)
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			var rec map[string]any
			require.NoError(t, json.Unmarshal([]byte(line), &rec))
			if rec["error_code"] == code {
				id, _ = rec["request_id"].(string)
			}
		}
		return id != ""
	})
	return id
}

func TestPromptsAndSecretsAreNowhere(t *testing.T) {
	s, recordOf := startAudited(t)
	e := newEngine(t, nil)
	id := uuid.NewString()
	const secret, prompt = "sk-very-secret", "the prompt that must stay secret"
	answer := s.start(t.Context(), chatPath+"?key="+secret, `{"model":"m","messages":[{"role":"user","content":"`+prompt+`"}]}`,
		"X-Request-Id", id, "Authorization", "Bearer "+secret, "X-Api-Key", secret)
	s.metric(`hivenet_pending_demand{model="m"}`, "1")
	s.register(hello("a", e.addr(), 1, "m"))
	require.Equal(t, http.StatusOK, (<-answer).status)
	recordOf(id)
	text, err := os.ReadFile(s.audit)
	require.NoError(t, err)
	for _, where := range []string{string(text), s.log.String(), s.metrics()} {
		require.NotContains(t, where, secret)
		require.NotContains(t, where, prompt)
	}
}

func TestTheAuditFileIsReopened(t *testing.T) {
	s, recordOf := startAudited(t)
	first, second := uuid.NewString(), uuid.NewString()
	s.post("/nothing", "", "X-Request-Id", first)
	recordOf(first)
	require.NoError(t, os.Rename(s.audit, s.audit+".1"))
	require.NoError(t, s.app.Reload())
	s.post("/nothing", "", "X-Request-Id", second)
	require.Equal(t, "other", recordOf(second)["path"])
}

// Clients use an alias, which engines do not know.
func TestAnAliasReachesTheEngineAsItsModel(t *testing.T) {
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	require.NoError(t, os.WriteFile(policy, []byte("models: {m: {aliases: [gpt-4o-mini]}}"), 0o600))
	s := startSite(t, "--policy-file", policy)
	e := newEngine(t, nil)
	answer := s.start(t.Context(), chatPath, `{ "model" : "gpt-4o-mini", "x":1 }`)
	s.metric(`hivenet_pending_demand{model="m"}`, "1")
	s.register(hello("a", e.addr(), 1, "m"))
	require.Equal(t, http.StatusOK, (<-answer).status)
	_, sent := e.last()
	require.Equal(t, `{ "model" : "m", "x":1 }`, sent)
	body := bigBody("gpt-4o-mini", 300<<10)
	require.Equal(t, http.StatusOK, s.post(chatPath, body).status)
	got, sent := e.last()
	require.Equal(t, strings.Replace(body, "gpt-4o-mini", "m", 1), sent)
	require.Equal(t, int64(len(sent)), got.ContentLength)
	s.atRest()
}

func TestAClientSaysHowLongItWaits(t *testing.T) {
	s := startSite(t)
	for _, headers := range [][]string{{"X-Wake-Timeout", "200ms"}, {"X-Stainless-Timeout", "1.2"}} {
		r := s.post(chatPath, chatBody("m", false), headers...)
		require.Equal(t, http.StatusServiceUnavailable, r.status)
		require.Contains(t, r.body, "is waking up; retry in 1 second\"")
		require.GreaterOrEqual(t, r.elapsed, 200*time.Millisecond)
		require.Less(t, r.elapsed, 5*time.Second)
	}
	require.Equal(t, http.StatusServiceUnavailable, s.post(chatPath, chatBody("m", false), "X-Wake-Timeout", "0s").status)
	s.metric(`hivenet_wake_holds_total{outcome="expired"}`, "3")
	require.Equal(t, http.StatusBadRequest, s.post(chatPath, chatBody("m", false), "X-Wake-Timeout", "soon").status)
	s.atRest()
}
