// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const apiKey = "hg-a-key-of-the-tests"

// keysFile writes a keys file with one key; more is added to its entry.
func keysFile(t *testing.T, more string) string {
	t.Helper()
	sum := sha256.Sum256([]byte(apiKey))
	path := filepath.Join(t.TempDir(), "keys.yaml")
	text := fmt.Sprintf("keys:\n- key_hash: %s\n  id: acme-prod\n  tenant: acme\n%s", hex.EncodeToString(sum[:]), more)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func secretFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hop-secret")
	require.NoError(t, os.WriteFile(path, []byte(strings.Repeat("s3cret", 8)+"\n"), 0o600))
	return path
}

// twoSites starts two sites with each other in their maps; each of them may hold m.
func twoSites(t *testing.T, flags ...string) (a, b *site) {
	t.Helper()
	a = startSite(t, append(flags, "--site-id=a")...)
	b = startSite(t, append(flags, "--site-id=b")...)
	return a, b
}

// pushMapOf pushes the map of both sites to one, with hints for the model m.
func (s *site) pushMapOf(a, b *site, hints string) {
	s.t.Helper()
	// The sites have different host names, because clients drop the Authorization
	// header when the host changes.
	at := func(x *site, host string) string {
		u, err := url.Parse(x.url)
		require.NoError(s.t, err)
		return "http://" + host + ":" + u.Port()
	}
	r := s.putMap(fmt.Sprintf(`{"sites":[{"id":"a","url":%q,"insecure":true,"scopes":["eu"]},{"id":"b","url":%q,"insecure":true,"scopes":["eu"]}],
		"placements":[{"model":"m","kind":"chat","site":"a","scale_from_zero":true},{"model":"m","kind":"chat","site":"b","scale_from_zero":true}],
		"hints":[%s]}`, at(a, "localhost"), at(b, "localhost"), hints))
	require.Equal(s.t, http.StatusOK, r.status, r.body)
}

func hint(site, state string) string {
	return fmt.Sprintf(`{"model":"m","kind":"chat","site":%q,"state":%q,"observed_at":%q}`, site, state, time.Now().UTC().Format(time.RFC3339))
}

// noFollow turns off following redirects.
func noFollow(s *site) {
	s.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
}

func TestAColdModelRedirectsToTheWarmSite(t *testing.T) {
	a, b := twoSites(t, "--auth-file", keysFile(t, ""), "--hop-secret-file", secretFile(t))
	a.pushMapOf(a, b, hint("b", "warm"))
	b.pushMapOf(a, b, "")
	e := newEngine(t, nil)
	b.register(hello("b-1", e.addr(), 4, "m"))
	noFollow(a)
	body := chatBody("m", false)

	r := a.post(chatPath+"?x=%20y&x=z", body, "Authorization", "Bearer "+apiKey)
	require.Equal(t, http.StatusTemporaryRedirect, r.status, r.body)
	require.JSONEq(t, `{"redirect":{"site":"b"},"error":{"code":"redirected","message":"model m is served by site b: follow the Location of this answer","source":"router"}}`, r.body)
	require.Equal(t, "no-store", r.header.Get("Cache-Control"))
	require.Empty(t, r.header.Get("Retry-After"))
	location := r.header.Get("Location")
	require.True(t, strings.HasPrefix(location, "http://localhost:"), location)
	require.Contains(t, location, chatPath+"?x=%20y&x=z&hg_hop=")

	follow := func(to, body string, headers ...string) result {
		u, err := url.Parse(to)
		require.NoError(t, err)
		return b.post(u.RequestURI(), body, headers...)
	}
	// The token replaces the key, which clients drop on the way.
	r = follow(location, body)
	require.Equal(t, http.StatusOK, r.status, r.body)
	got, sent := e.last()
	require.Equal(t, chatPath+"?x=%20y&x=z", got.RequestURI, "the token is not the engine's business")
	require.Equal(t, body, sent)
	require.Empty(t, got.Header.Get("Authorization"))
	// It is valid for this request only.
	require.Equal(t, http.StatusUnauthorized, follow(location, chatBody("m", true)).status)
	require.Equal(t, http.StatusUnauthorized, follow(strings.Replace(location, "x=z", "x=w", 1), body).status)
	require.Equal(t, http.StatusUnauthorized, follow(location[:len(location)-3]+"xxx", body).status)
	require.Equal(t, http.StatusUnauthorized, follow(strings.Split(location, "&hg_hop")[0], body).status)
	// A valid key counts even with an invalid token.
	require.Equal(t, http.StatusOK, follow(location[:len(location)-3]+"xxx", body, "X-Api-Key", apiKey).status)
	b.metric(`hivenet_hop_tokens_rejected_total{reason="mismatch"}`, "2")
	b.metric(`hivenet_hop_tokens_rejected_total{reason="forged"}`, "1")
	b.metric(`hivenet_routing_requests_routed_total{engine="custom",model="m",region="test",tenant_id="acme"}`, "2")
	require.Equal(t, http.StatusUnauthorized, a.post(chatPath, body).status)
	require.Contains(t, a.post(chatPath, body, "X-Api-Key", "wrong").body, `"code":"unauthorized"`)
	a.atRest()
	b.atRest()
}

func TestBothColdHoldsHere(t *testing.T) {
	a, b := twoSites(t)
	a.pushMapOf(a, b, hint("b", "cold"))
	answer := a.start(t.Context(), chatPath, chatBody("m", false))
	a.metric(`hivenet_pending_demand{model="m"}`, "1")
	a.register(hello("a-1", newEngine(t, nil).addr(), 1, "m"))
	require.Equal(t, http.StatusOK, (<-answer).status)
	a.atRest()
}

// Maps that point at each other end in a hold after two redirects.
func TestStaleMapsMakeNoLoop(t *testing.T) {
	for name, flags := range map[string][]string{"signed": {"--hop-secret-file", secretFile(t)}, "counted": nil} {
		t.Run(name, func(t *testing.T) {
			a, b := twoSites(t, flags...)
			a.pushMapOf(a, b, hint("b", "warm"))
			b.pushMapOf(a, b, hint("a", "warm"))
			answer := a.start(t.Context(), chatPath, chatBody("m", false))
			a.metric(`hivenet_pending_demand{model="m"}`, "1")
			b.metric(`hivenet_pending_demand{model="m"}`, "0")
			a.register(hello("a-1", newEngine(t, nil).addr(), 1, "m"))
			require.Equal(t, http.StatusOK, (<-answer).status)
			a.atRest()
		})
	}
}

func TestHintsAloneChangeWhereRequestsGo(t *testing.T) {
	a, b := twoSites(t)
	a.pushMapOf(a, b, hint("b", "cold"))
	noFollow(a)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+a.app.AdminAddr()+"/v1/sitemap/hints", strings.NewReader(`{"hints":[`+hint("b", "warm")+`]}`))
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, a.do(r).status)
	require.Equal(t, http.StatusTemporaryRedirect, a.post(chatPath, chatBody("m", false)).status)
	require.Equal(t, http.StatusTemporaryRedirect, a.post("/v1/messages/count_tokens", chatBody("m", false)).status)
}

func TestAKeyThatCannotFollowIsHeld(t *testing.T) {
	a, b := twoSites(t, "--auth-file", keysFile(t, "  redirect: never\n"))
	a.pushMapOf(a, b, hint("b", "warm"))
	answer := a.start(t.Context(), chatPath, chatBody("m", false), "X-Api-Key", apiKey)
	a.metric(`hivenet_pending_demand{model="m"}`, "1")
	a.register(hello("a-1", newEngine(t, nil).addr(), 1, "m"))
	require.Equal(t, http.StatusOK, (<-answer).status)
}

func TestAModelThatTheKeyMayNotUse(t *testing.T) {
	s := startSite(t, "--auth-file", keysFile(t, "  models: [other]\n"))
	r := s.post(chatPath, chatBody("m", false), "X-Api-Key", apiKey)
	require.Equal(t, http.StatusForbidden, r.status)
	require.Contains(t, r.body, `"code":"model_forbidden"`)
	s.atRest()
}

func TestBrowsersMayCallFromConfiguredOrigins(t *testing.T) {
	a, b := twoSites(t, "--cors-origins", "https://app.example.com")
	a.pushMapOf(a, b, hint("b", "warm"))
	noFollow(a)
	r := a.do(a.request(t.Context(), http.MethodOptions, chatPath, "", "Origin", "https://app.example.com", "Access-Control-Request-Method", "POST"))
	require.Equal(t, http.StatusNoContent, r.status)
	require.Equal(t, "https://app.example.com", r.header.Get("Access-Control-Allow-Origin"))
	r = a.post(chatPath, chatBody("m", false), "Origin", "https://app.example.com")
	require.Equal(t, http.StatusTemporaryRedirect, r.status)
	require.Equal(t, "https://app.example.com", r.header.Get("Access-Control-Allow-Origin"))
	r = a.post(chatPath, chatBody("m", false), "Origin", "https://evil.example.com")
	require.Empty(t, r.header.Get("Access-Control-Allow-Origin"))
	r = a.post(chatPath, chatBody("m", false), "Origin", "https://app.example.com", "X-Wake-Timeout", "soon")
	require.Equal(t, http.StatusBadRequest, r.status)
	require.Equal(t, "https://app.example.com", r.header.Get("Access-Control-Allow-Origin"))
	b.pushMapOf(a, b, "")
	r = b.post(chatPath+"?hg_hop=2", chatBody("m", false), "Origin", "https://app.example.com", "X-Wake-Timeout", "0s")
	require.Equal(t, http.StatusServiceUnavailable, r.status)
	require.Equal(t, "https://app.example.com", r.header.Get("Access-Control-Allow-Origin"))
	a.atRest() // a preflight is not counted as demand
}

// Every answer has the router's CORS headers and none of the engine's, on every path;
// the engine does not get the origin.
func TestEveryAnswerHasTheRoutersCORSHeaders(t *testing.T) {
	const origin = "https://app.example.com"
	s := startSite(t, "--cors-origins", origin, "--wake-keepalive", "200ms")
	e := newEngine(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "https://engine.example")
		w.Header().Set("Access-Control-Allow-Credentials", "true")
		w.Header().Set("Vary", "accept")
		_, _ = io.WriteString(w, "{}")
	})
	check := func(r result, vary ...string) {
		t.Helper()
		require.NoError(t, r.err)
		require.Equal(t, http.StatusOK, r.status, r.body)
		require.Equal(t, []string{origin}, r.header["Access-Control-Allow-Origin"])
		require.Empty(t, r.header["Access-Control-Allow-Credentials"])
		require.Contains(t, r.header.Get("Access-Control-Expose-Headers"), "x-request-id")
		require.Equal(t, vary, r.header["Vary"])
		got, _ := e.last()
		require.Empty(t, got.Header["Origin"])
	}
	wake := func(delay time.Duration) result {
		answer := s.start(t.Context(), chatPath, chatBody("m", false), "Origin", origin)
		s.metric(`hivenet_pending_demand{model="m"}`, "1")
		time.Sleep(delay)
		a := s.register(hello("a", e.addr(), 4, "m"))
		r := <-answer
		a.leave()
		s.asleep("m")
		return r
	}
	check(wake(0), "accept, origin")            // relayed, with the engine's own head
	check(wake(400*time.Millisecond), "origin") // begun by a keepalive
	check(s.do(s.request(t.Context(), http.MethodGet, "/v1/models", "", "Origin", origin)), "origin")
	s.register(hello("a", e.addr(), 4, "m"))
	check(s.post(chatPath, chatBody("m", false), "Origin", origin), "accept,origin")
	other := s.post(chatPath, chatBody("m", false), "Origin", "https://evil.example.com")
	require.Equal(t, http.StatusOK, other.status)
	require.Empty(t, other.header["Access-Control-Allow-Origin"])
	// The answer of the rehold lane, after a replica that refused.
	s.register(hello("b", closedPort(t), 4, "fixed"))
	s.register(hello("c", e.addr(), 4, "fixed"))
	for range 2 { // one of them is first sent to the replica that refuses
		check(s.post(chatPath, chatBody("fixed", false), "Origin", origin), "accept,origin")
	}
	s.atRest()
}

// sayHello answers both APIs as engines do, streaming on request.
func sayHello(w http.ResponseWriter, r *http.Request) {
	const message = `{"id":"x","type":"message","role":"assistant","model":"m","content":[%s],"stop_reason":null,"usage":{"input_tokens":1,"output_tokens":1}}`
	const chunk = `{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"finish_reason":"stop","%s":{"role":"assistant","content":"hello"}}]}`
	body, _ := r.Context().Value(requestBody{}).(string)
	anthropic, stream := strings.HasSuffix(r.URL.Path, "/messages"), strings.Contains(body, `"stream": true`) || strings.Contains(body, `"stream":true`)
	if !stream {
		w.Header().Set("Content-Type", "application/json")
		if anthropic {
			_, _ = fmt.Fprintf(w, message, `{"type":"text","text":"hello"}`)
		} else {
			_, _ = fmt.Fprintf(w, chunk, "message")
		}
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	if !anthropic {
		_, _ = fmt.Fprintf(w, "data: "+chunk+"\n\ndata: [DONE]\n\n", "delta")
		return
	}
	_, _ = fmt.Fprintf(w, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":"+message+"}\n\n", "")
	for _, event := range []string{
		`{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`,
		`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hello"}}`,
		`{"type":"content_block_stop","index":0}`,
		`{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":1}}`,
		`{"type":"message_stop"}`,
	} {
		kind, _, _ := strings.Cut(strings.TrimPrefix(event, `{"type":"`), `"`)
		_, _ = fmt.Fprintf(w, "event: %s\ndata: %s\n\n", kind, event)
	}
}

// The official clients follow, and stay authenticated by the token.
func TestClientsFollowARedirect(t *testing.T) {
	a, b := twoSites(t, "--auth-file", keysFile(t, ""), "--hop-secret-file", secretFile(t))
	a.pushMapOf(a, b, hint("b", "warm"))
	b.pushMapOf(a, b, "")
	e := newEngine(t, sayHello)
	b.register(hello("b-1", e.addr(), 4, "m"))
	script := filepath.Join("clients", "python", "chat.py")
	for name, command := range map[string][]string{
		"openai python":    {python(t), script, "--api", "openai"},
		"anthropic python": {python(t), script, "--api", "anthropic"},
		"openai node":      {"node", filepath.Join("clients", "node", "chat.mjs")},
	} {
		t.Run(name, func(t *testing.T) {
			if command[0] == "node" {
				command[0] = node(t)
			}
			args := append(slices.Clone(command), "--base-url", a.url, "--model", "m", "--api-key", apiKey)
			require.Equal(t, "hello", client(t, args...)["text"])
			require.Equal(t, "hello", client(t, append(args, "--stream")...)["text"])
		})
	}
	out, err := exec.CommandContext(t.Context(), "curl", "--silent", "--show-error", "--fail-with-body", "-L", "--max-time", "20",
		a.url+chatPath, "-H", "content-type: application/json", "-H", "authorization: Bearer "+apiKey, "-d", chatBody("m", false)).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "hello")
	require.Equal(t, 7, e.count())
}

// A key that is removed from the file stops working at once, also for a held request.
func TestARevokedKeyStopsAtOnce(t *testing.T) {
	keys := keysFile(t, "")
	s := startSite(t, "--auth-file", keys)
	answer := s.start(t.Context(), chatPath, chatBody("m", false), "X-Api-Key", apiKey)
	s.metric(`hivenet_pending_demand{model="m"}`, "1")
	require.NoError(t, os.WriteFile(keys, []byte("keys: []"), 0o600))
	require.NoError(t, s.app.Reload())
	r := <-answer
	require.Equal(t, http.StatusUnauthorized, r.status, r.body)
	require.Equal(t, http.StatusUnauthorized, s.post(chatPath, chatBody("m", false), "X-Api-Key", apiKey).status)
	// An invalid file leaves the previous version in use.
	require.NoError(t, os.WriteFile(keys, []byte("keys: [{}]"), 0o600))
	require.Error(t, s.app.Reload())
	s.metric(`hivenet_config_last_reload_successful{file="auth-file"}`, "0")
	s.atRest()
}

func TestQuotasCountServedAndHeldRequests(t *testing.T) {
	s := startSite(t, "--auth-file", keysFile(t, "  quota: {requests_per_minute: 2}\n"))
	held := s.start(t.Context(), chatPath, chatBody("m", false), "X-Api-Key", apiKey)
	s.metric(`hivenet_pending_demand{model="m"}`, "1")
	s.register(hello("a", newEngine(t, nil).addr(), 1, "m"))
	r := <-held
	require.Equal(t, http.StatusOK, r.status)
	require.Equal(t, "1", r.header.Get("X-Ratelimit-Remaining-Requests"))
	r = s.post(chatPath, chatBody("m", false), "X-Api-Key", apiKey)
	require.Equal(t, http.StatusOK, r.status)
	require.Equal(t, "0", r.header.Get("X-Ratelimit-Remaining-Requests"))
	r = s.post(chatPath, chatBody("m", false), "X-Api-Key", apiKey)
	require.Equal(t, http.StatusTooManyRequests, r.status)
	require.Contains(t, r.body, `"code":"rate_limit_exceeded"`)
	require.NotEmpty(t, r.header.Get("Retry-After"))
	require.Equal(t, "0", r.header.Get("X-Ratelimit-Remaining-Requests"))
	s.atRest()
}
