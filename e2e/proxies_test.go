// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/envoy"
)

// clientAddress is a client address on this machine that no proxy uses.
const clientAddress = "127.0.0.2"

// proxies are run with the settings of docs/proxies.md, except for timeouts of a
// second, which only keepalives survive.
var proxies = map[string]struct {
	block string // of the document
	edge  func(*envoy.Config)
	wrap  func(block, dir string) string
	args  []string
}{
	"nginx": {
		"nginx", func(c *envoy.Config) { c.TrustedHops = 1 },
		func(block, dir string) string {
			text := "daemon off; master_process off; pid " + dir + "/pid; events {}\nhttp { access_log off;\n"
			for _, path := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
				text += path + "_temp_path " + dir + "/" + path + ";\n"
			}
			return text + block + "}"
		},
		[]string{"-e", "stderr", "-c"},
	},
	"haproxy": {
		"haproxy", func(c *envoy.Config) { c.ProxyProtocol = true },
		func(block, _ string) string { return block },
		[]string{"-db", "-f"},
	},
}

// behind starts a proxy in front of the site, and sends the site's requests through it.
func (s *site) behind(name string) {
	s.t.Helper()
	p := proxies[name]
	dir := s.t.TempDir()
	document, err := os.ReadFile("../docs/proxies.md")
	require.NoError(s.t, err)
	_, rest, _ := strings.Cut(string(document), "```"+p.block+"\n")
	block, _, found := strings.Cut(rest, "```")
	require.True(s.t, found, "the document has its settings")
	at := closedPort(s.t)
	changes := []string{"127.0.0.1:8080", s.envoy.EdgeAddr(), "listen 80", "listen " + at, "bind :80", "bind " + at, "60s", "1s"}
	file := filepath.Join(dir, name+".conf")
	require.NoError(s.t, os.WriteFile(file, []byte(p.wrap(strings.NewReplacer(changes...).Replace(block), dir)), 0o600))
	cmd := exec.Command(tool(s.t, name), append(p.args, file)...)
	cmd.Stdout, cmd.Stderr = s.log, s.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(s.t, cmd.Start())
	s.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	s.url = "http://" + at
	s.eventually(name+" listens", func() bool {
		conn, err := net.Dial("tcp", at)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

func TestProxiesInFront(t *testing.T) {
	for name, p := range proxies {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "audit.log")
			s := startSiteBehind(t, p.edge, "--wake-keepalive", "300ms", "--audit-file", path)
			s.audit = path
			direct := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(clientAddress)}}
			s.http.Transport = &http.Transport{DialContext: direct.DialContext}
			t.Cleanup(s.http.CloseIdleConnections)
			s.behind(name)

			// Expired holds reach the client unchanged, and do not affect others.
			for range 4 {
				r := s.post(chatPath, chatBody("short", false), "X-Wake-Keepalive", "off")
				require.Equal(t, http.StatusServiceUnavailable, r.status)
				require.Equal(t, "30", r.header.Get("Retry-After"))
			}
			s.metric(`hivenet_wake_holds_total{outcome="expired"}`, "4")

			// A client that disconnects is noticed within two keepalives.
			ctx, leave := context.WithCancel(t.Context())
			gone := s.start(ctx, chatPath, chatBody("m", true))
			s.metric(`hivenet_pending_demand{model="m"}`, "1")
			leave()
			<-gone
			s.metric(`hivenet_pending_demand{model="m"}`, "0")

			// With keepalives, streams and large bodies alike are held past the
			// timeouts.
			id := uuid.NewString()
			stream := s.start(t.Context(), chatPath, chatBody("m", true), "X-Request-Id", id, "X-Forwarded-For", "192.0.2.66")
			plain := s.start(t.Context(), chatPath, bigBody("m", 8<<20))
			s.metric(`hivenet_pending_demand{model="m"}`, "2")
			time.Sleep(1500 * time.Millisecond)
			e := newEngine(t, nil)
			s.register(hello("a", e.addr(), 2, "m"))
			for _, answer := range []<-chan result{stream, plain} {
				r := <-answer
				require.NoError(t, r.err)
				require.Equal(t, http.StatusOK, r.status, r.body)
				require.Greater(t, r.elapsed, 1500*time.Millisecond)
				require.True(t, strings.HasSuffix(r.body, `{"answer":true}`), r.body)
			}
			require.Equal(t, clientAddress, s.recordOf(id)["source_ip"])

			// The engine of a warm request gets no headers about trusted proxies.
			require.Equal(t, http.StatusOK, s.post(chatPath, chatBody("m", false)).status)
			got, _ := e.last()
			for header := range got.Header {
				require.False(t, strings.HasPrefix(header, "X-Envoy-"), header)
			}
			s.atRest()
		})
	}
}
