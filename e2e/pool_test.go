// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/internal/certs/certstest"
	"github.com/holdgate/holdgate/internal/pickertest"
)

// pooled is a Holdgate with a backend that is a pool with a picker.
type pooled struct {
	*site
	*process
	picker *pickertest.Picker
	stop   func() // ends the picker
	socket string // of the picker
	lane   bool   // it is in the same Envoy
}

func (p *pooled) startPicker() {
	p.picker = &pickertest.Picker{}
	l := listenUnix(p.site.t, p.socket)
	p.stop = p.picker.Serve(l)
	p.site.t.Cleanup(p.stop)
}

// startPool starts serve with a backend at url, in which DIR is the directory of the lanes.
func startPool(t *testing.T, url string, run func(p *pooled, dir string)) *pooled {
	t.Helper()
	dir, err := os.MkdirTemp("", "hg")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	config := filepath.Join(dir, "serve.yaml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, "log-level: debug\nbackends:\n- {name: qwen, url: %q, pool: true, health_path: /health, models: [m], max_wait: 30s, slots: 8}\n", strings.ReplaceAll(url, "DIR", dir)), 0o600))
	p := &pooled{site: &site{t: t, log: &buffer{}, http: newHTTPClient(t)}, socket: filepath.Join(dir, "picker.sock")}
	p.startPicker()
	p.process = start(t, "serve", "--config", config, "--extproc-listen", "unix://"+dir+"/extproc.sock", "--relay", "unix://"+dir+"/relay.sock",
		"--agents-listen", "unix://"+dir+"/agents.sock", "--admin-listen", "127.0.0.1:0", "--wake-keepalive", "200ms")
	p.waitLog("holdgate is ready")
	run(p, dir)
	return p
}

// eachPool runs a test with a pool in the same Envoy, and with one in a second Envoy.
func eachPool(t *testing.T, test func(t *testing.T, p *pooled)) {
	t.Helper()
	t.Run("in the same Envoy", func(t *testing.T) {
		t.Parallel()
		test(t, startPool(t, "unix://DIR/pool-qwen.sock", func(p *pooled, dir string) {
			b, err := envoy.Render(envoy.Config{EdgeListen: "127.0.0.1:0", LanesDir: dir, Pools: []string{"qwen=unix://" + p.socket}})
			require.NoError(t, err)
			p.lane = true
			p.url = "http://" + runEnvoy(t, b, dir, p.log).EdgeAddr()
		}))
	})
	t.Run("in a second Envoy", func(t *testing.T) {
		t.Parallel()
		listen := closedPort(t)
		test(t, startPool(t, "http://"+listen, func(p *pooled, dir string) {
			second := &chain{site: &site{t: t, log: p.log, http: p.http}, picker: p.picker, dir: filepath.Join(dir, "2"), dead: closedPort(t)}
			require.NoError(t, os.Mkdir(second.dir, 0o700))
			require.NoError(t, os.Symlink(p.socket, filepath.Join(second.dir, "picker.sock")))
			second.runPool(listen, closedPort(t))
			p.url = "http://" + startEnvoy(t, dir, p.log).EdgeAddr()
		}))
	})
}

// A backend that is a pool with a picker: requests are held until the picker has an endpoint.
// Each body reaches the engine once.
func TestAPoolWithAPicker(t *testing.T) {
	shapes := bodyShapes(33, 64<<10+1, 1<<20+1<<19)
	body := func(n int) string { return paddedBody("m", n) }
	eachPool(t, func(t *testing.T, p *pooled) {
		t.Helper()
		e := newExactEngine(t, nil)
		var held []map[bodyShape]<-chan result
		for _, keepalives := range []string{"on", "off"} {
			held = append(held, p.sendShapes(chatPath, shapes, body, "X-Wake-Keepalive", keepalives, "X-Gateway-Destination-Endpoint", "127.0.0.1:1"))
		}
		p.waitLog("the backend is not ready yet")
		time.Sleep(2 * someKeepalives)
		p.picker.Name(e.addr)
		if p.lane { // it reads the first of a list; the other has Envoy's own ORIGINAL_DST
			p.picker.Name(e.addr, "127.0.0.1:1")
		}
		for _, answers := range held {
			requireAnswered(t, http.StatusOK, answers)
		}
		requireShapes(t, e, 2, shapes, body)
		requireAnswered(t, http.StatusOK, p.sendShapes(chatPath, shapes, body))
		requireShapes(t, e, 1, shapes, body)
	})
}

// requireShapes requires that each shape reached the engine so many times, byte for byte,
// besides health checks.
func requireShapes(t *testing.T, e *exactEngine, times int, shapes []bodyShape, body func(int) string) {
	t.Helper()
	requests, faults := e.taken()
	require.Empty(t, faults)
	got := map[string]int{}
	for _, q := range requests {
		if strings.HasPrefix(q.line, "GET /health ") {
			continue
		}
		got[q.header.Get("X-Shape")]++
		for _, shape := range shapes {
			if shape.String() == q.header.Get("X-Shape") {
				require.True(t, q.body == body(shape.size), shape) //nolint:testifylint // Equal would print megabytes
			}
		}
	}
	require.Len(t, got, len(shapes))
	for shape, n := range got {
		require.Equal(t, times, n, shape)
	}
}

// What happens to requests when the pool gives no answer, warm, and held once more.
func TestAPoolThatTakesNoRequest(t *testing.T) {
	eachPool(t, func(t *testing.T, p *pooled) {
		t.Helper()
		e := newEngine(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Die") != "" {
				panic(http.ErrAbortHandler)
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"answer":true}`)
		})
		p.picker.Name(e.addr())
		ask := func(headers ...string) result {
			return p.post(chatPath, chatBody("m", false), headers...)
		}
		require.Equal(t, http.StatusOK, ask().status)
		ways := map[string]func(){
			"the picker has no endpoint":  func() { p.picker.Name() },
			"it names a pod that is gone": func() { p.picker.Name("127.0.0.1:1") },
		}
		if p.lane { // the other answers 500, as it would without Holdgate
			ways["the picker itself is not there"] = func() { p.stop() }
		}
		for name, fails := range ways {
			for _, keepalives := range []string{"on", "off"} {
				fails()
				before := strings.Count(p.out.String(), "did not take the request")
				held := p.start(t.Context(), chatPath, chatBody("m", false), "X-Wake-Keepalive", keepalives)
				p.eventually(name, func() bool {
					return strings.Count(p.out.String(), "did not take the request") > before || strings.Contains(p.out.String(), "the backend is not ready yet")
				})
				time.Sleep(someKeepalives)
				if strings.HasPrefix(name, "the picker itself") {
					p.startPicker()
				}
				p.picker.Name(e.addr())
				r := <-held
				require.Equal(t, http.StatusOK, r.status, "%s, keepalives %s: %s", name, keepalives, r.body)
				require.JSONEq(t, `{"answer":true}`, r.body, name)
			}
		}
		p.picker.Shed(true)
		require.Equal(t, http.StatusTooManyRequests, ask().status, "it is passed on")
		p.picker.Shed(false)
		if !p.lane { // nothing tells there whether an engine has died or refused the request
			return
		}
		before := e.count()
		r := ask("X-Die", "1")
		require.Equal(t, http.StatusBadGateway, r.status, "the engine may have done its work")
		require.Contains(t, r.body, `"code":"backend_error"`)
		require.Equal(t, before+1, e.count())
	})
}

// What the end of the picker and kill -9 of Holdgate do to an answer that runs.
func TestAPoolWhosePartsEnd(t *testing.T) {
	eachPool(t, func(t *testing.T, p *pooled) {
		t.Helper()
		finish := make(chan struct{})
		e := newEngine(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Wait") == "" {
				return
			}
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: 1\n\n")
			_ = http.NewResponseController(w).Flush()
			select {
			case <-finish:
			case <-r.Context().Done():
			}
			_, _ = io.WriteString(w, "data: 2\n\n")
		})
		p.picker.Name(e.addr())
		require.Equal(t, http.StatusOK, p.post(chatPath, chatBody("m", false)).status, "it is warm from here on")
		running := p.runs("yes")
		p.stop()
		_, err := io.ReadAll(running.resp.Body)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)

		p.startPicker()
		p.picker.Name(e.addr())
		p.eventually("the pool is there again", func() bool { return p.post(chatPath, chatBody("m", false)).status == http.StatusOK })
		running = p.runs("yes")
		require.NoError(t, p.cmd.Process.Kill())
		require.Error(t, p.ends())
		close(finish)
		rest, err := io.ReadAll(running.resp.Body)
		require.NoError(t, err)
		require.Equal(t, "data: 2\n\n", string(rest))
	})
}

// A picker over TLS is asked only if its certificate is for its address.
func TestAPoolWhosePickerHasTLS(t *testing.T) {
	t.Parallel()
	right, wrong := certstest.New(t), certstest.New(t)
	for name, c := range map[string]struct {
		edits  []func(*x509.Certificate)
		ca     string
		status int
	}{
		"checked":       {nil, right.File, http.StatusOK},
		"not checked":   {nil, "", http.StatusOK},
		"another CA":    {nil, wrong.File, http.StatusServiceUnavailable},
		"another's own": {[]func(*x509.Certificate){certstest.Named("elsewhere.test")}, right.File, http.StatusServiceUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			cert := filepath.Join(t.TempDir(), "cert.pem")
			key := cert + ".key"
			right.IssueTo(cert, key, c.edits...)
			pair, err := tls.LoadX509KeyPair(cert, key)
			require.NoError(t, err)
			e := newEngine(t, nil)
			p := startPool(t, "unix://DIR/pool-qwen.sock", func(p *pooled, dir string) {
				picker := &pickertest.Picker{}
				picker.Name(e.addr())
				t.Cleanup(picker.Serve(tls.NewListener(listener, &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"}})))
				b, err := envoy.Render(envoy.Config{EdgeListen: "127.0.0.1:0", LanesDir: dir, PoolCAFile: c.ca, Pools: []string{"qwen=https://" + listener.Addr().String()}})
				require.NoError(t, err)
				p.url = "http://" + runEnvoy(t, b, dir, p.log).EdgeAddr()
			})
			r := p.do(p.site.request(t.Context(), http.MethodPost, chatPath, chatBody("m", false), "X-Wake-Keepalive", "off", "X-Wake-Timeout", "5s"))
			require.Equal(t, c.status, r.status, r.body)
			require.Equal(t, c.status == http.StatusOK, e.count() > 0)
		})
	}
}
