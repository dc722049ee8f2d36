// SPDX-License-Identifier: Apache-2.0

package wake

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/reload"
)

// realHooks are Webhooks that make real calls. Failures arrive in failed.
func realHooks(t *testing.T, o WebhookOptions) (w *Webhooks, failed chan string) {
	t.Helper()
	failed = make(chan string, 10)
	o.Demand = func(string) int { return 1 }
	o.OnFailed = func(_, reason string) { failed <- reason }
	o.Registerer, o.Log = prometheus.NewRegistry(), zerolog.Nop()
	w = NewWebhooks(o)
	t.Cleanup(func() { w.Stop(context.Background()) })
	return w, failed
}

// platform is a server that delivers each request it got, and then calls f.
func platform(t *testing.T, f http.HandlerFunc) (*httptest.Server, chan *http.Request) {
	t.Helper()
	got := make(chan *http.Request, 10)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r
		f(w, r)
	}))
	t.Cleanup(s.Close)
	return s, got
}

func accept(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) }

func headersFile(t *testing.T, text string) *HeadersFile {
	t.Helper()
	path := filepath.Join(t.TempDir(), "headers.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	f, err := LoadHeaders(path, reload.Options{Setting: "webhook-headers-file", Log: zerolog.Nop()})
	require.NoError(t, err)
	return f
}

func TestSecretHeadersGoToTheirHostAlone(t *testing.T) {
	t.Parallel()
	one, gotOne := platform(t, accept)
	two, gotTwo := platform(t, accept)
	hostOne := one.Listener.Addr().String()
	w, _ := realHooks(t, WebhookOptions{
		Headers: headersFile(t, "\""+hostOne+"\": {authorization: Bearer one}\nlocalhost: {Authorization: Bearer two}\n"),
	})
	w.Set("a", &Hook{URL: one.URL + "/a"})
	w.Set("b", &Hook{URL: two.URL + "/b"})
	w.Wanted("a", true, false)
	w.Wanted("b", true, false)
	a, b := <-gotOne, <-gotTwo
	require.Equal(t, "Bearer one", a.Header.Get("Authorization"))
	require.Equal(t, "/a", a.URL.Path)
	require.Equal(t, http.MethodPost, a.Method)
	require.Empty(t, b.Header.Get("Authorization"))
}

func TestHeadersThatChangedAreUsedByTheNextCall(t *testing.T) {
	t.Parallel()
	s, got := platform(t, accept)
	path := filepath.Join(t.TempDir(), "headers.yaml")
	require.NoError(t, os.WriteFile(path, []byte("127.0.0.1: {X-Token: old}"), 0o600))
	f, err := LoadHeaders(path, reload.Options{Setting: "webhook-headers-file", Log: zerolog.Nop()})
	require.NoError(t, err)
	w, _ := realHooks(t, WebhookOptions{Headers: f})
	w.Set("a", &Hook{URL: s.URL + "/1"})
	w.Wanted("a", true, false)
	require.Equal(t, "old", (<-got).Header.Get("X-Token"))

	require.NoError(t, os.WriteFile(path, []byte("127.0.0.1: {X-Token: new}"), 0o600))
	require.NoError(t, f.Reload())
	w.Set("a", &Hook{URL: s.URL + "/2"})
	require.Equal(t, "new", (<-got).Header.Get("X-Token"))
}

func TestARedirectToAnotherHostIsNotFollowed(t *testing.T) {
	t.Parallel()
	other, stolen := platform(t, accept)
	for _, code := range []int{301, 302, 303, 307, 308} {
		s, got := platform(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, code) })
		w, failed := realHooks(t, WebhookOptions{Headers: headersFile(t, "127.0.0.1: {X-Token: hush}")})
		w.Set("a", &Hook{URL: s.URL})
		w.Wanted("a", true, false)
		require.Equal(t, "hush", (<-got).Header.Get("X-Token"))
		require.Contains(t, <-failed, "a redirect that is not followed")
	}
	require.Empty(t, stolen)
}

func TestARedirectOnTheSameHostIsFollowedWithItsBody(t *testing.T) {
	t.Parallel()
	bodies := make(chan int64, 2)
	s, got := platform(t, func(w http.ResponseWriter, r *http.Request) {
		bodies <- r.ContentLength
		if r.URL.Path == "/old" {
			http.Redirect(w, r, "/new", http.StatusTemporaryRedirect)
		}
	})
	w, _ := realHooks(t, WebhookOptions{})
	w.Set("a", &Hook{URL: s.URL + "/old"})
	w.Wanted("a", true, false)
	first, second := <-got, <-got
	require.Equal(t, "/new", second.URL.Path)
	require.Equal(t, http.MethodPost, second.Method)
	require.Equal(t, first.Header.Get("Idempotency-Key"), second.Header.Get("Idempotency-Key"))
	length := <-bodies
	require.Positive(t, length)
	require.Equal(t, length, <-bodies)
}

// A POST that becomes a GET would be answered as if it had woken something.
func TestARedirectThatChangesTheMethodIsNotFollowed(t *testing.T) {
	t.Parallel()
	s, got := platform(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			http.Redirect(w, r, "/form", http.StatusFound)
		}
	})
	w, failed := realHooks(t, WebhookOptions{})
	w.Set("a", &Hook{URL: s.URL})
	w.Wanted("a", true, false)
	require.Equal(t, "its wake hook answered 302, a redirect that is not followed", <-failed)
	require.Len(t, got, 1)
}

// pemFiles writes a certificate and its key.
func pemFiles(t *testing.T, dir string, c tls.Certificate) TLSFiles {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	require.NoError(t, err)
	f := TLSFiles{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	require.NoError(t, os.WriteFile(f.Cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}), 0o600))
	require.NoError(t, os.WriteFile(f.Key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600))
	return f
}

func TestTLSTrustsWhatItIsTold(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.URL.Path }))
	s.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	s.StartTLS()
	t.Cleanup(s.Close)
	files := pemFiles(t, t.TempDir(), s.TLS.Certificates[0])
	outcome := func(f TLSFiles) outcome {
		c, err := f.Client()
		require.NoError(t, err)
		w, _ := realHooks(t, WebhookOptions{TLS: c})
		return w.call(&call{models: []string{"a"}, hook: &Hook{URL: s.URL + "/wake", Method: http.MethodPost}}).outcome
	}
	require.Equal(t, unreachable, outcome(TLSFiles{}), "an authority of nobody's")
	require.Equal(t, unreachable, outcome(TLSFiles{CA: files.Cert}), "no certificate of ours")
	require.Equal(t, succeeded, outcome(TLSFiles{CA: files.Cert, Cert: files.Cert, Key: files.Key}))
	require.Equal(t, "/wake", <-got)
}

func TestACertificateThatWasRenewedIsShownNext(t *testing.T) {
	t.Parallel()
	s := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(s.Close)
	dir := t.TempDir()
	files := pemFiles(t, dir, s.TLS.Certificates[0])
	client, err := files.Client()
	require.NoError(t, err)
	shown := func() []byte {
		c, err := client.GetClientCertificate(nil)
		require.NoError(t, err)
		return c.Certificate[0]
	}
	require.Equal(t, s.Certificate().Raw, shown())
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	renewed, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(2)}, s.Certificate(), key.Public(), s.TLS.Certificates[0].PrivateKey)
	require.NoError(t, err)
	pemFiles(t, dir, tls.Certificate{Certificate: [][]byte{renewed}, PrivateKey: key})
	require.Equal(t, renewed, shown())
}

func TestTLSFilesThatCannotBeReadAreRefused(t *testing.T) {
	t.Parallel()
	none := filepath.Join(t.TempDir(), "none.pem")
	require.NoError(t, os.WriteFile(none, []byte("hush"), 0o600))
	for _, f := range []TLSFiles{{CA: none}, {CA: none + ".missing"}, {Cert: none, Key: none}} {
		_, err := f.Client()
		require.ErrorContains(t, err, "reading the ")
		require.NotContains(t, err.Error(), "hush")
	}
	c, err := TLSFiles{}.Client()
	require.NoError(t, err)
	require.Nil(t, c)
}

func TestHostsOfHeaders(t *testing.T) {
	t.Parallel()
	h, err := ParseHeaders([]byte("Hooks.example.com: {A: any}\nhooks.example.com:443: {A: tls}\n'[::1]': {A: six}\n'[::1]:8080': {A: port}\n"))
	require.NoError(t, err)
	for raw, want := range map[string]string{
		"https://hooks.example.com/x":       "tls",
		"https://hooks.example.com:443/x":   "tls",
		"http://HOOKS.example.com/x":        "any",
		"https://hooks.example.com:8443/x":  "any",
		"https://example.com/x":             "",
		"https://hooks.example.com.evil/x":  "",
		"https://evil/hooks.example.com":    "",
		"https://hooks.example.com@evil/x":  "",
		"http://[::1]/x":                    "six",
		"http://[::1]:8080/x":               "port",
		"https://xhooks.example.com":        "",
		"https://hooks.example.com:4433/in": "any",
	} {
		u, err := url.Parse(raw)
		require.NoError(t, err)
		head := http.Header{}
		h.addTo(u, head)
		require.Equal(t, want, head.Get("A"), raw)
	}
}

func TestBadHeadersFilesAreRefusedWithoutTheirSecrets(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"empty":              "",
		"a list":             "- hush",
		"a text":             "hush",
		"two documents":      "a: {B: hush}\n---\na: {B: hush}",
		"no YAML":            "a: {B: hush",
		"a tab":              "a:\n\tB: hush",
		"an anchor":          "a: {B: *hush}",
		"an alias":           "a: {B: &x hush, C: *x}",
		"host with scheme":   "https://a: {B: hush}",
		"host with path":     "a/b: {B: hush}",
		"host with user":     "u@a: {B: hush}",
		"host empty":         "'': {B: hush}",
		"host port zero":     "a:0: {B: hush}",
		"host without port":  "'a:': {B: hush}",
		"host star":          "'*.example.com': {B: hush}",
		"host number":        "1: {B: hush}",
		"host twice":         "a: {B: hush}\nA: {B: hush}",
		"headers a list":     "a: [hush]",
		"headers left out":   "a:",
		"header bad name":    "a: {'B C': hush}",
		"header twice":       "a: {Bb: hush, bb: hush}",
		"value number":       "a: {B: 12}",
		"value empty":        "a: {B: ''}",
		"value left out":     "a: {B: }",
		"value two lines":    "a: {B: \"hush\\nC: hush\"}",
		"value a mapping":    "a: {B: {C: hush}}",
		"header of the call": "a: {idempotency-key: hush}",
		"header of HTTP":     "a: {Host: hush}",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := ParseHeaders([]byte(text))
			require.Error(t, err)
			require.NotContains(t, err.Error(), "hush")
			require.NotContains(t, err.Error(), "\n")
		})
	}
	_, err := ParseHeaders([]byte("{}"))
	require.NoError(t, err)
}
