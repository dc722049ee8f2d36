// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/internal/certs/certstest"
	"github.com/holdgate/holdgate/internal/shared/valkeytest"
)

const networkPage = "gateways/network.md"

// network is what Envoy calls a router over: it carries bytes, loses what is sent, or closes
// connections.
type network struct {
	net.Listener
	to string

	mu    sync.Mutex
	lost  bool
	conns [][2]net.Conn // each with the one to the router, the oldest first
}

func newNetwork(t *testing.T, to string) *network {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w := &network{Listener: l, to: to}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() { w.carry(near) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		w.lose(false)
		w.cut()
		running.Wait()
	})
	return w
}

// carry carries a connection of Envoy.
func (w *network) carry(near net.Conn) {
	defer near.Close()
	far, err := net.Dial("tcp", w.to)
	if err != nil {
		return
	}
	defer far.Close()
	ends := [2]net.Conn{near, far}
	w.mu.Lock()
	w.conns = append(w.conns, ends)
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.conns = slices.DeleteFunc(w.conns, func(c [2]net.Conn) bool { return c == ends })
	}()
	done := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
		go func() {
			w.copy(way[0], way[1])
			done <- struct{}{}
		}()
	}
	<-done
	_, _ = near.Close(), far.Close()
	<-done
}

// copy carries bytes until the connection ends. While the network loses what is sent, it loses
// that end, too.
func (w *network) copy(from, to net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		for w.loses() && err != nil {
			time.Sleep(10 * time.Millisecond)
		}
		if w.loses() {
			continue
		}
		if _, failed := to.Write(buffer[:n]); failed != nil || err != nil {
			return
		}
	}
}

func (w *network) loses() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost
}

// lose has the network lose what is sent, or not any more.
func (w *network) lose(lost bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lost = lost
}

// newest returns the connection that was made last.
func (w *network) newest() [2]net.Conn {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.conns[len(w.conns)-1]
}

// cut closes all connections but some.
func (w *network) cut(but ...[2]net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		if !slices.Contains(but, c) {
			_, _ = c[0].Close(), c[1].Close()
		}
	}
}

// open returns the number of connections.
func (w *network) open() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.conns)
}

// distant is a router and a gateway that calls it over a network.
type distant struct {
	*site
	net *network

	dir     string
	serve   *process
	flags   []string
	routers *certstest.Authority // of the router's certificate
	envoys  *certstest.Authority // of Envoy's
	config  string               // of Envoy
	extProc string               // where the router listens
	engine  *engine
	agents  string
	clients string // the gateway's listener
}

// distantOptions change what a distant is started with.
type distantOptions struct {
	plain   bool                     // no TLS
	own     bool                     // the bootstrap of holdgate envoy render, whose destination is replica
	change  func(text string) string // of Envoy's configuration
	flags   []string                 // of the router
	handler http.HandlerFunc         // of the engine
}

// startDistant starts a router and a gateway with the settings of the page.
func startDistant(t *testing.T, o distantOptions) *distant {
	t.Helper()
	dir, err := os.MkdirTemp("", "hg")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	d := &distant{
		site: &site{t: t, log: &buffer{}, http: newHTTPClient(t), admin: valkeytest.FreeAddress(t)},
		dir:  dir, extProc: valkeytest.FreeAddress(t), clients: valkeytest.FreeAddress(t), routers: certstest.New(t), envoys: certstest.New(t),
		agents: "unix://" + filepath.Join(dir, "agents.sock"), engine: newEngine(t, o.handler),
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(d.log.String())
		}
	})
	d.net = newNetwork(t, d.extProc)
	d.routers.IssueTo(d.file("router.pem"), d.file("router-key.pem"), routerNames)
	d.envoys.IssueTo(d.file("envoy.pem"), d.file("envoy-key.pem"))
	d.copy(d.envoys.File, "envoys-ca.pem")
	d.copy(d.routers.File, "holdgate-ca.pem")
	require.NoError(t, os.WriteFile(d.file("serve.yaml"), nil, 0o600))
	line := strings.Fields(d.here().Replace(block(t, networkPage, "", "holdgate serve")))
	d.flags = slices.Concat(line[1:], []string{
		"--agents-listen", d.agents, "--admin-listen", d.admin, "--site-id", "here", "--wake-keepalive", "200ms",
		"--relay", "http://" + d.clients,
	})
	if o.plain {
		d.flags = []string{
			"serve", "--destination", "route", "--extproc-listen", d.extProc, "--relay", "http://" + d.clients, "--agents-listen", d.agents,
			"--admin-listen", d.admin, "--site-id", "here", "--wake-keepalive", "200ms",
		}
	}
	if o.own {
		for i, flag := range d.flags {
			switch flag {
			case "--destination":
				d.flags[i+1] = "replica"
			case "--relay":
				d.flags[i+1] = "unix://" + d.file(envoy.RelaySocket)
			}
		}
	}
	d.flags = append(d.flags, o.flags...)
	d.startRouter()
	require.Equal(t, http.StatusOK, d.putMap(testMap).status)
	if o.own {
		d.config = d.rendered()
	} else {
		d.config = d.gateway(o.plain)
	}
	if o.change != nil {
		d.config = o.change(d.config)
	}
	d.runDistantEnvoy()
	return d
}

// file returns the path of a file of this site.
func (d *distant) file(name string) string { return filepath.Join(d.dir, name) }

// copy copies a file to one of this site, by a rename.
func (d *distant) copy(from, name string) {
	d.t.Helper()
	text, err := os.ReadFile(from)
	require.NoError(d.t, err)
	require.NoError(d.t, os.WriteFile(d.file(name)+".new", text, 0o600))
	require.NoError(d.t, os.Rename(d.file(name)+".new", d.file(name)))
}

// here replaces the addresses and the directories of the pages.
func (d *distant) here() *strings.Replacer {
	_, wirePort, _ := net.SplitHostPort(d.net.Addr().String())
	_, listenPort, _ := net.SplitHostPort(d.clients)
	_, enginePort, _ := net.SplitHostPort(d.engine.addr())
	return strings.NewReplacer(
		"0.0.0.0:9001", d.extProc, "/etc/holdgate", d.dir, "/etc/envoy", d.dir,
		"address: router.example, port_value: 9001", "address: 127.0.0.1, port_value: "+wirePort,
		"port_value: 8080", "port_value: "+listenPort, "port_value: 8000", "port_value: "+enginePort,
	)
}

// gateway returns the bootstrap of plain-envoy.md with the cluster of network.md.
func (d *distant) gateway(plain bool) string {
	d.t.Helper()
	whole := block(d.t, "gateways/plain-envoy.md", "yaml", "static_resources:")
	before, _, found := strings.Cut(whole, "  # Begin of what Holdgate needs: the cluster.\n")
	require.True(d.t, found)
	cluster := block(d.t, networkPage, "yaml", "  - name: holdgate\n")
	if plain {
		begin, end := strings.Index(cluster, "    transport_socket:\n"), strings.Index(cluster, "    load_assignment:\n")
		cluster = cluster[:begin] + cluster[end:]
	}
	for _, name := range []string{"holdgate-tls.yaml", "holdgate-ca.yaml"} {
		text := d.here().Replace(block(d.t, networkPage, "yaml", "# /etc/envoy/"+name))
		require.NoError(d.t, os.WriteFile(d.file(name), []byte(text), 0o600))
	}
	return d.here().Replace("node: {id: gateway-1, cluster: gateways}\n" + before + cluster)
}

// rendered returns the bootstrap of holdgate envoy render, with TLS to the router.
func (d *distant) rendered() string {
	d.t.Helper()
	c := envoy.Config{
		EdgeListen: d.clients, LanesDir: d.dir, ExtProc: d.net.Addr().String(), SecretsDir: d.dir,
		ExtProcCertFile: d.file("envoy.pem"), ExtProcKeyFile: d.file("envoy-key.pem"), ExtProcCAFile: d.file("holdgate-ca.pem"),
	}
	files, err := envoy.Secrets(c)
	require.NoError(d.t, err)
	for name, text := range files {
		require.NoError(d.t, os.WriteFile(d.file(name), text, 0o600))
	}
	b, err := envoy.Render(c)
	require.NoError(d.t, err)
	text, err := envoy.YAML(b)
	require.NoError(d.t, err)
	return regexp.MustCompile(`(?m)^admin:\n(?: .*\n)*`).ReplaceAllString(string(text), "")
}

// routerNames are the names of the router's certificate: one for plain gateways, and the address
// for the bootstrap of holdgate envoy render.
func routerNames(c *x509.Certificate) { c.DNSNames = []string{"router.example"} }

// startRouter starts the router's process.
func (d *distant) startRouter() {
	d.t.Helper()
	d.serve = start(d.t, d.flags...)
	d.serve.waitLog("holdgate is ready")
}

// runDistantEnvoy starts the gateway.
func (d *distant) runDistantEnvoy() {
	d.t.Helper()
	bin, err := envoy.Find(d.t.Context())
	require.NoError(d.t, err)
	text := d.config + "\nadmin: {address: {pipe: {path: " + d.file("admin.sock") + "}}}\n"
	d.site.envoy, err = bin.Start(context.Background(), envoy.Options{Bootstrap: []byte(text), Dir: d.dir, Concurrency: 2, Log: d.log, LogLevel: "error"})
	require.NoError(d.t, err)
	d.t.Cleanup(func() { require.NoError(d.t, d.site.envoy.Stop(5*time.Second)) })
	d.url = "http://" + d.clients
}

// wakeUp starts an agent of the engine.
func (d *distant) wakeUp() *process {
	d.t.Helper()
	p := start(d.t, "agent", "--router", d.agents, "--id", "a", "--engine", "custom", "--backend-url", "http://"+d.engine.addr(),
		"--model", "m", "--capability", "llm", "--capacity", "64")
	series := `hivenet_agent_slots{agent_id="a"} `
	d.eventually(series, func() bool { return strings.Contains(d.metrics(), series) })
	return p
}

// healthy waits until Envoy's health check finds the router.
func (d *distant) healthy() {
	d.t.Helper()
	d.eventually("Envoy finds the router", func() bool {
		return strings.Contains(d.envoyAdmin("/clusters"), "holdgate::127.0.0.1:") && !strings.Contains(d.envoyAdmin("/clusters"), "failed_active_hc")
	})
}

// envoyAdmin returns a page of Envoy's admin interface.
func (d *distant) envoyAdmin(path string) string {
	d.t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", d.file("admin.sock"))
	}}}
	resp, err := c.Get("http://envoy" + path)
	if err != nil {
		return fmt.Sprint(err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return string(text)
}
