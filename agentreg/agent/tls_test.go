// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/internal/certs"
	"github.com/holdgate/holdgate/internal/certs/certstest"
	"github.com/holdgate/holdgate/internal/reload"
)

// secureRouter is a router on a port of the loopback address, with a certificate
// of a, that trusts agents of clients if that is not nil.
func secureRouter(t *testing.T, a, clients *certstest.Authority, edits ...func(*x509.Certificate)) (r *router, port string) {
	t.Helper()
	f := certs.Files{}
	f.Cert.Path, f.Key.Path = a.Issue(edits...)
	if clients != nil {
		f.ClientCA.Path = clients.File
	}
	s, err := certs.Load(f, reload.Options{})
	require.NoError(t, err)
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, port, err = net.SplitHostPort(lis.Addr().String())
	require.NoError(t, err)
	return routerOn(t, lis, lis.Addr().String(), grpc.Creds(credentials.NewTLS(s.Config()))), port
}

// sleeper is an agent whose engine is never started.
func sleeper(t *testing.T, r *router) Config {
	t.Helper()
	return onDemand(t, r, "never started")
}

func TestRouterAndAgentProveThemselves(t *testing.T) {
	t.Parallel()
	ours, other := certstest.New(t), certstest.New(t)
	named, expired := certstest.Named("router.test"), certstest.Expired
	own := func(a *certstest.Authority, edits ...func(*x509.Certificate)) TLS {
		tls := TLS{CAFile: ours.File}
		tls.CertFile, tls.KeyFile = a.Issue(edits...)
		return tls
	}
	cases := map[string]struct {
		clients *certstest.Authority
		router  []func(*x509.Certificate)
		host    string
		tls     TLS
		refused string
		advice  string // its flag
	}{
		"own authority, by address":  {nil, nil, "127.0.0.1", TLS{CAFile: ours.File}, "", ""},
		"own authority, by name":     {nil, []func(*x509.Certificate){certstest.Named("localhost")}, "localhost", TLS{CAFile: ours.File}, "", ""},
		"another name":               {nil, []func(*x509.Certificate){named}, "localhost", TLS{CAFile: ours.File}, "certificate is valid for router.test, not localhost", "--tls-server-name"},
		"the name that is asked for": {nil, []func(*x509.Certificate){named}, "localhost", TLS{CAFile: ours.File, ServerName: "router.test"}, "", ""},
		"wrong authority":            {nil, nil, "127.0.0.1", TLS{CAFile: other.File}, "certificate signed by unknown authority", "--tls-ca-file"},
		"the system's authorities":   {nil, nil, "127.0.0.1", TLS{On: true}, "certificate signed by unknown authority", "--tls-ca-file"},
		"expired":                    {nil, []func(*x509.Certificate){expired}, "127.0.0.1", TLS{CAFile: ours.File}, "certificate has expired", "--agents-tls-cert-file"},
		"no TLS":                     {nil, nil, "127.0.0.1", TLS{}, "connecting to", "--tls-ca-file"},
		"mutual":                     {ours, nil, "127.0.0.1", own(ours), "", ""},
		// The router may have closed the connection before the agent reads why.
		"mutual without any": {ours, nil, "127.0.0.1", TLS{CAFile: ours.File}, "connecting to", "--tls-cert-file"},
		"mutual of another":  {ours, nil, "127.0.0.1", own(other), "connecting to", "--tls-cert-file"},
		"mutual expired":     {ours, nil, "127.0.0.1", own(ours, expired), "connecting to", "--tls-cert-file"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, port := secureRouter(t, ours, c.clients, c.router...)
			cfg := sleeper(t, r)
			cfg.Routers, cfg.TLS = []string{net.JoinHostPort(c.host, port)}, c.tls
			a := start(t, cfg)
			if c.refused == "" {
				r.await("agent registered")
				return
			}
			refusal := a.await("not connected to the router")
			require.Contains(t, refusal.Error, c.refused)
			require.Contains(t, refusal.Advice, c.advice)
			require.Empty(t, r.Agents())
		})
	}
}

func TestAgentSaysWhatToChangeAboutARouterWithoutTLS(t *testing.T) {
	t.Parallel()
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := routerOn(t, lis, lis.Addr().String())
	cfg := sleeper(t, r)
	cfg.TLS.CAFile = certstest.New(t).File
	require.Contains(t, start(t, cfg).await("not connected to the router").Advice, "leave out --tls and --tls-ca-file")
}

func TestAgentSaysThatAPortIsNotForAgents(t *testing.T) {
	t.Parallel()
	admin := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(admin.Close)
	cfg := newNetwork(t).config()
	cfg.Routers, cfg.dial, cfg.Exec = []string{admin.Listener.Addr().String()}, nil, []string{"engine"}
	a := start(t, cfg).await("not connected to the router")
	require.Contains(t, a.Error, "HTTP/1.1 header")
	require.Equal(t, "is --router the address of the router's --agents-listen, and not of its --admin-listen?", a.Advice)
}

func TestProblemThatDiffersOnlyInItsNumbersIsLoggedOnce(t *testing.T) {
	t.Parallel()
	log := newEvents(t)
	l := &link{agent: &agent{log: zerolog.New(log)}}
	for _, problem := range []string{"port 1 broken", "at 10:01", "port 2 broken", "at 10:02"} {
		l.logProblem(errors.New(problem))
	}
	require.Len(t, log.list, 2)
	require.Equal(t, "the agent tries again", log.list[0].Next)
	require.Empty(t, log.list[1].Next, "once is enough")
	clear(l.logged) // as when it was connected
	l.logProblem(errors.New("port 3 broken"))
	require.Len(t, log.list, 3)
}

func TestFilesOfAnAgentMayBeReplacedWhileItRuns(t *testing.T) {
	t.Parallel()
	ours, other := certstest.New(t), certstest.New(t)
	r, _ := secureRouter(t, ours, ours)
	cfg := sleeper(t, r)
	cfg.TLS.CAFile = other.File
	cfg.TLS.CertFile, cfg.TLS.KeyFile = other.Issue()
	a := start(t, cfg)
	refused := func(why string) {
		t.Helper()
		for !strings.Contains(a.await("not connected to the router").Error, why) {
			require.Empty(t, r.Agents())
		}
	}
	refused("unknown authority")
	text, err := os.ReadFile(ours.File)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(cfg.TLS.CAFile, text, 0o600))
	refused("connecting to") // its own certificate is still another's
	require.NoError(t, os.Remove(cfg.TLS.KeyFile))
	refused("--tls-cert-file: ")
	ours.IssueTo(cfg.TLS.CertFile, cfg.TLS.KeyFile)
	r.await("agent registered")
}

func TestTokenIsReadAtEachConnection(t *testing.T) {
	t.Parallel()
	auth := agentreg.TokenAuth(func() []string { return []string{"new"} })
	r := newRouter(t, grpc.StreamInterceptor(auth))
	cfg := sleeper(t, r)
	var current atomic.Pointer[string]
	cfg.Token = func() (string, error) {
		if s := current.Load(); s != nil {
			return *s, nil
		}
		return "", errors.New("--token-file: it is gone")
	}
	a := start(t, cfg)
	require.Contains(t, a.await("not connected to the router").Error, "--token-file: it is gone")
	current.Store(new("old"))
	require.Contains(t, a.await("not connected to the router").Error, "the token is unknown")
	current.Store(new("new"))
	r.await("agent registered")
}

func TestARouterThatIsNotThereComesWithAdvice(t *testing.T) {
	t.Parallel()
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, lis.Close())
	_, err = new(net.Dialer).DialContext(t.Context(), "tcp", lis.Addr().String())
	require.Error(t, err)
	require.Contains(t, TLS{}.advice(err.Error()), "--agents-listen")
}
