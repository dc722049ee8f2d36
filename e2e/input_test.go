// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
)

func TestBadRequestsGetAClearJSONError(t *testing.T) {
	s := startSite(t)
	e := newEngine(t, nil)
	s.register(hello("a", e.addr(), 4, "m"))
	for name, c := range map[string]struct {
		method, path, body string
		headers            []string
		status             int
		code               string
	}{
		"no JSON":           {"POST", chatPath, "model=m", nil, 400, "request_invalid"},
		"truncated":         {"POST", chatPath, `{"model":"m"`, nil, 400, "request_invalid"},
		"trailing data":     {"POST", chatPath, `{"model":"m"} {}`, nil, 400, "request_invalid"},
		"an array":          {"POST", chatPath, `["m"]`, nil, 400, "request_invalid"},
		"empty":             {"POST", chatPath, ``, nil, 400, "request_invalid"},
		"no model":          {"POST", chatPath, `{"messages":[]}`, nil, 400, "request_invalid"},
		"MODEL":             {"POST", chatPath, `{"MODEL":"m"}`, nil, 400, "request_invalid"},
		"empty model":       {"POST", chatPath, `{"model":""}`, nil, 400, "request_invalid"},
		"model is a number": {"POST", chatPath, `{"model":1}`, nil, 400, "request_invalid"},
		"stream is text":    {"POST", chatPath, `{"model":"m","stream":"yes"}`, nil, 400, "request_invalid"},
		"two models":        {"POST", chatPath, `{"model":"m","model":"n"}`, nil, 400, "request_invalid"},
		"two models, one escaped": {
			"POST", chatPath, `{"model":"m","mod\u0065l":"n"}`, nil, 400, "request_invalid",
		},
		"unknown model":         {"POST", chatPath, `{"model":"nobody \"knows\" it"}`, nil, 404, "model_not_found"},
		"unknown model, rerank": {"POST", "/v1/rerank", `{"model":"x"}`, nil, 404, "model_not_found"},
		"11 MiB":                {"POST", chatPath, bigBody("m", 11<<20), nil, 413, "request_too_large"},
		"unknown coding":        {"POST", chatPath, `{"model":"m"}`, []string{"Content-Encoding", "deflate"}, 415, "unsupported_encoding"},
		"not the coding it says": {
			"POST", chatPath, `{"model":"m"}`, []string{"Content-Encoding", "gzip"}, 400, "request_invalid",
		},
		"GET":          {"GET", chatPath, "", nil, 405, "method_not_allowed"},
		"OPTIONS":      {"OPTIONS", chatPath, "", nil, 405, "method_not_allowed"},
		"PUT":          {"PUT", chatPath, chatBody("m", false), nil, 405, "method_not_allowed"},
		"unknown path": {"POST", "/v1/audio/speech", `{"model":"m"}`, nil, 404, "not_found"},
		"the root":     {"GET", "/", "", nil, 404, "not_found"},
		"escaped path": {"POST", "/v1/chat%2Fcompletions", chatBody("m", false), nil, 404, "not_found"},
	} {
		t.Run(name, func(t *testing.T) {
			r := s.do(s.request(t.Context(), c.method, c.path, c.body, c.headers...))
			require.NoError(t, r.err)
			require.Equal(t, c.status, r.status, r.body)
			require.Contains(t, r.body, `"code":"`+c.code+`"`)
			require.Equal(t, "application/json", r.header.Get("Content-Type"))
		})
	}
	require.Zero(t, e.count(), "no engine saw any of them")
	s.atRest()
}

func TestHeadAndUpgradeEndAtOnce(t *testing.T) {
	s := startSite(t)
	r := s.do(s.request(t.Context(), http.MethodHead, chatPath, ""))
	require.NoError(t, r.err)
	require.Equal(t, http.StatusMethodNotAllowed, r.status)
	for _, upgrade := range []string{"websocket", "h2c"} {
		r := s.do(s.request(t.Context(), http.MethodGet, chatPath, "", "Connection", "Upgrade", "Upgrade", upgrade))
		require.NoError(t, r.err)
		require.GreaterOrEqual(t, r.status, 400, upgrade)
		require.Less(t, r.elapsed, 5*time.Second)
	}
	s.atRest()
}

func TestCompressedBodiesReachTheEngineAsTheyCame(t *testing.T) {
	s := startSite(t)
	e := newEngine(t, nil)
	s.register(hello("a", e.addr(), 4, "m"))
	plain := bigBody("m", 100<<10)
	write := func(w io.WriteCloser, b *bytes.Buffer) string {
		_, err := io.WriteString(w, plain)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		return b.String()
	}
	var g, z, b bytes.Buffer
	zw, err := zstd.NewWriter(&z)
	require.NoError(t, err)
	for coding, body := range map[string]string{
		"gzip": write(gzip.NewWriter(&g), &g), "zstd": write(zw, &z), "br": write(brotli.NewWriter(&b), &b),
	} {
		r := s.post(chatPath, body, "Content-Encoding", coding)
		require.Equal(t, http.StatusOK, r.status, coding+r.body)
		got, sent := e.last()
		require.Equal(t, coding, got.Header.Get("Content-Encoding"))
		require.Equal(t, body, sent, coding)
	}
	s.atRest()
}

// raw sends bytes to the edge and returns the connection.
func (s *site) raw(text string) net.Conn {
	s.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = conn.Close() })
	require.NoError(s.t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = io.WriteString(conn, text)
	require.NoError(s.t, err)
	return conn
}

func TestExpectAndTrailersAndChunksArrive(t *testing.T) {
	s := startSite(t)
	e := newEngine(t, nil)
	s.register(hello("a", e.addr(), 4, "m"))
	body := bigBody("m", 2<<20)

	r := s.post(chatPath, body, "Expect", "100-continue")
	require.Equal(t, http.StatusOK, r.status, r.body)
	require.Less(t, r.elapsed, time.Second)
	_, sent := e.last()
	require.Equal(t, body, sent)

	chunked := fmt.Sprintf("POST %s HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n5\r\n{\"mod\r\n%x\r\n%s\r\n0\r\nx-trailer: yes\r\n\r\n",
		chatPath, len(`el":"m"}`), `el":"m"}`)
	answer, err := io.ReadAll(s.raw(chunked))
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(answer), "HTTP/1.1 200"), string(answer))
	_, sent = e.last()
	require.JSONEq(t, `{"model":"m"}`, sent)
	s.atRest()
}

// The limit is enforced before the rest of the upload is read.
func TestAnEndlessUploadEndsAtTheLimit(t *testing.T) {
	s := startSite(t)
	conn := s.raw("POST " + chatPath + " HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
	stop := make(chan struct{})
	go func() {
		defer close(stop)
		piece := fmt.Sprintf("%x\r\n%s\r\n", 64<<10, strings.Repeat(" ", 64<<10))
		for range 400 { // 25 MiB at most
			if _, err := io.WriteString(conn, piece); err != nil {
				return
			}
		}
	}()
	answer := make([]byte, 512)
	n, err := conn.Read(answer)
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(answer[:n]), "HTTP/1.1 413"), string(answer[:n]))
	_ = conn.Close()
	<-stop
	s.atRest()
}

func TestABadMapIsRefusedWhole(t *testing.T) {
	s := startSite(t)
	for name, c := range map[string]struct {
		text string
		want string
	}{
		"not JSON":    {`{`, `"code":"map_invalid"`},
		"unknown":     {`{"placement":[]}`, `"path":"placement"`},
		"bad budget":  {`{"placements":[{"model":"m","kind":"chat","site":"here","hold_budget":"2h"}]}`, `"path":"placements[0].hold_budget"`},
		"bad kind":    {`{"placements":[{"model":"m","kind":"text","site":"here"}]}`, `"path":"placements[0].kind"`},
		"repeated":    {`{"placements":[{"model":"m","kind":"chat","site":"here"},{"model":"m","kind":"chat","site":"here"}]}`, `placements[1]`},
		"other sites": {`{"placements":[{"model":"m","kind":"chat","site":"there"}]}`, `"path":"placements[0].site"`},
	} {
		t.Run(name, func(t *testing.T) {
			r := s.putMap(c.text)
			require.Equal(t, http.StatusBadRequest, r.status, r.body)
			require.Contains(t, r.body, c.want)
		})
	}
	require.Equal(t, http.StatusRequestEntityTooLarge, s.putMap(strings.Repeat(" ", 9<<20)).status)
	s.metric(`hivenet_pending_demand{model="m"}`, "0") // the first map is still active
}

func TestTheAdminAPIAnswersInJSON(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("# admin\nsecret\n"), 0o600))
	s := startSite(t, "--admin-token-file", token, "--site-id=here")
	call := func(method, path, body string, headers ...string) result {
		r, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.app.AdminAddr()+path, strings.NewReader(body))
		require.NoError(t, err)
		for i := 0; i+1 < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		return s.do(r)
	}
	require.Equal(t, http.StatusOK, call("GET", "/healthz", "").status)
	r := call("GET", "/readyz", "")
	require.Equal(t, http.StatusServiceUnavailable, r.status)
	require.JSONEq(t, `{"status":"not ready","reason":"no sibling map was pushed or restored yet: push one with holdgate map push -f FILE"}`, r.body)
	require.Contains(t, s.post(chatPath, chatBody("m", false)).body, `"code":"map_not_loaded"`)
	require.NotContains(t, s.metrics(), "hivenet_pending_demand{")

	require.Equal(t, http.StatusUnauthorized, call("PUT", "/v1/sitemap", testMap).status)
	require.Equal(t, http.StatusUnauthorized, call("PUT", "/v1/sitemap", testMap, "Authorization", "Bearer wrong").status)
	auth := []string{"Authorization", "Bearer secret"}
	require.Equal(t, http.StatusNotFound, call("GET", "/v1/sitemap", "", auth...).status)
	require.Equal(t, http.StatusOK, call("PUT", "/v1/sitemap", testMap, auth...).status)
	require.Equal(t, http.StatusOK, call("GET", "/readyz", "").status)
	got := call("GET", "/v1/sitemap", "", auth...)
	require.Equal(t, http.StatusOK, got.status)
	require.NotEmpty(t, got.header.Get("ETag"))
	require.Equal(t, http.StatusNotModified, call("GET", "/v1/sitemap", "", append(auth, "If-None-Match", got.header.Get("ETag"))...).status)
	require.Equal(t, http.StatusPreconditionFailed, call("PUT", "/v1/sitemap", testMap, append(auth, "If-Match", `"other"`)...).status)
	require.Equal(t, http.StatusMethodNotAllowed, call("DELETE", "/v1/sitemap", "", auth...).status)
	require.Equal(t, http.StatusNotFound, call("GET", "/v2", "", auth...).status)
	s.metric(`hivenet_wake_wanted{model="m"}`, "0")
}

func TestTheModelsAPIListsStates(t *testing.T) {
	s := startSite(t)
	s.register(hello("a", newEngine(t, nil).addr(), 4, "m", "only-here"))
	r := s.do(s.request(t.Context(), http.MethodGet, "/v1/models", ""))
	require.Equal(t, http.StatusOK, r.status)
	require.JSONEq(t, `{"object":"list","data":[
		{"id":"fixed","object":"model","created":0,"owned_by":"holdgate","state":"asleep"},
		{"id":"m","object":"model","created":0,"owned_by":"holdgate","state":"warm"},
		{"id":"only-here","object":"model","created":0,"owned_by":"holdgate","state":"warm"},
		{"id":"short","object":"model","created":0,"owned_by":"holdgate","state":"asleep"}]}`, r.body)
	require.Equal(t, http.StatusOK, s.do(s.request(t.Context(), http.MethodGet, "/v1/models/m", "")).status)
	require.Equal(t, http.StatusNotFound, s.do(s.request(t.Context(), http.MethodGet, "/v1/models/x", "")).status)
}
