// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/internal/shared/valkeytest"
)

// routers are the routers of one site, which share state through one Valkey.
type routers struct {
	t      *testing.T
	valkey *valkeytest.Server
	all    []*router
}

// router is a holdgate serve process with an Envoy of its own. Both keep their addresses when
// they are started again.
type router struct {
	*site
	dir     string // of its sockets and its files
	flags   []string
	process *process // the holdgate serve that was started last
}

// startRouters starts n routers, all with the same flags, and pushes testMap.
func startRouters(t *testing.T, n int, flags ...string) *routers {
	t.Helper()
	return startRoutersAt(t, valkeytest.Start(t), n, flags...)
}

// startRoutersAt is startRouters with a Valkey that is there already.
func startRoutersAt(t *testing.T, valkey *valkeytest.Server, n int, flags ...string) *routers {
	t.Helper()
	rs := &routers{t: t, valkey: valkey}
	for i := range n {
		rs.add(fmt.Sprint("router-", i), flags)
	}
	for _, r := range rs.all {
		r.ready()
		r.startEnvoy()
	}
	rs.putMap(testMap)
	return rs
}

// add starts a further router, without its Envoy.
func (rs *routers) add(name string, flags []string) {
	rs.t.Helper()
	dir, err := os.MkdirTemp("", "hg") // t.TempDir is too long for a socket
	require.NoError(rs.t, err)
	rs.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	r := &router{dir: dir, site: &site{t: rs.t, log: &buffer{}, http: newHTTPClient(rs.t), admin: valkeytest.FreeAddress(rs.t)}}
	r.url = "http://" + valkeytest.FreeAddress(rs.t)
	r.flags = append([]string{
		"--site-id", "here", "--shared", rs.valkey.URL() + "?prefix=site-1", "--map-file", filepath.Join(dir, "map.json"),
		"--extproc-listen", "unix://" + filepath.Join(dir, envoy.ExtProcSocket), "--relay", "unix://" + filepath.Join(dir, envoy.RelaySocket),
		"--agents-listen", r.agents(), "--admin-listen", r.admin, "--envoy-admin", "unix://" + filepath.Join(dir, envoy.AdminSocket),
		"--drain-timeout", "5s",
	}, flags...)
	r.serve()
	rs.t.Cleanup(func() {
		if rs.t.Failed() {
			rs.t.Logf("%s, Envoy:\n%s", name, r.log)
		}
	})
	rs.all = append(rs.all, r)
}

// serve starts the router's process, which must not run.
func (r *router) serve() {
	r.t.Helper()
	r.process = start(r.t, append([]string{"serve"}, r.flags...)...)
}

// ready waits until the router says that it is ready.
func (r *router) ready() {
	r.t.Helper()
	r.process.waitLog("holdgate is ready")
}

// kill ends the router's process as a crash does.
func (r *router) kill() {
	r.t.Helper()
	require.NoError(r.t, r.process.cmd.Process.Kill())
	require.Error(r.t, r.process.ends())
}

// terminate asks the router's process to end; process.ends waits for that.
func (r *router) terminate() {
	r.t.Helper()
	require.NoError(r.t, r.process.cmd.Process.Signal(syscall.SIGTERM))
}

// startEnvoy starts the router's Envoy, which must not run.
func (r *router) startEnvoy() {
	r.t.Helper()
	b, err := envoy.Render(envoy.Config{EdgeListen: r.url[len("http://"):], LanesDir: r.dir})
	require.NoError(r.t, err)
	text, err := envoy.YAML(b)
	require.NoError(r.t, err)
	bin, err := envoy.Find(r.t.Context())
	require.NoError(r.t, err)
	p, err := bin.Start(context.Background(), envoy.Options{Bootstrap: text, Dir: r.dir, Concurrency: 1, Log: r.log, LogLevel: "error"})
	require.NoError(r.t, err)
	r.t.Cleanup(func() { _ = p.Stop(5 * time.Second) }) // it may have been killed
	r.envoy = p
}

// killEnvoy ends the router's Envoy as a crash does.
func (r *router) killEnvoy() {
	r.t.Helper()
	require.NoError(r.t, syscall.Kill(r.envoy.Pid(), syscall.SIGKILL))
	<-r.envoy.Done()
}

// value returns the value of a series, without the prefix of its name; 0 if there is none.
func (r *router) value(series string) int {
	r.t.Helper()
	_, rest, _ := strings.Cut(r.metrics(), "\nhivenet_"+series+" ")
	text, _, _ := strings.Cut(rest, "\n")
	value, _ := strconv.ParseFloat(text, 64)
	return int(value)
}

// agents returns the address of the router's port for agents.
func (r *router) agents() string { return "unix://" + filepath.Join(r.dir, "agents.sock") }

// putMap pushes a map to one router and waits until all have it.
func (rs *routers) putMap(text string) {
	rs.t.Helper()
	answer := rs.all[0].putMap(text)
	require.Equal(rs.t, http.StatusOK, answer.status, answer.body)
	tag := rs.all[0].mapTag()
	require.NotEmpty(rs.t, tag)
	for _, r := range rs.all {
		r.eventually("the router has the map", func() bool { return r.mapTag() == tag })
	}
}

// mapTag returns the entity tag of the map in force.
func (r *router) mapTag() string {
	r.t.Helper()
	q, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, "http://"+r.admin+"/v1/sitemap", http.NoBody)
	require.NoError(r.t, err)
	return r.do(q).header.Get("ETag")
}

// agent starts an agent of all routers for an engine that serves m, and waits until all know it.
func (rs *routers) agent(id, engine string, slots int, flags ...string) *process {
	rs.t.Helper()
	p := rs.startAgent(id, "m", engine, slots, flags...)
	for _, r := range rs.all {
		r.knows(id)
	}
	return p
}

// startAgent starts an agent of all routers for an engine that serves a model.
func (rs *routers) startAgent(id, model, engine string, slots int, flags ...string) *process {
	rs.t.Helper()
	args := []string{
		"agent", "--id", id, "--engine", "custom", "--backend-url", "http://" + engine, "--model", model,
		"--capability", "llm", "--capacity", strconv.Itoa(slots),
	}
	for _, r := range rs.all {
		args = append(args, "--router", r.agents())
	}
	return start(rs.t, append(args, flags...)...)
}

// knows waits until the agent is registered at the router.
func (r *router) knows(id string) {
	r.t.Helper()
	series := fmt.Sprintf("hivenet_agent_slots{agent_id=%q} ", id)
	r.eventually(series, func() bool { return strings.Contains(r.metrics(), series) })
}

// counter is the handler of an engine that counts its requests: those that run, and how often
// it answered each, by its header X-Of.
type counter struct {
	work time.Duration // of a request

	mu       sync.Mutex
	running  int
	most     int // that ran at a time
	came     []string
	answered map[string]int
}

func (c *counter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		return // the agent's health check
	}
	of := r.Header.Get("X-Of")
	c.mu.Lock()
	c.running++
	c.most = max(c.most, c.running)
	c.came = append(c.came, of)
	c.mu.Unlock()
	select {
	case <-time.After(c.work):
	case <-r.Context().Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running--
	if r.Context().Err() != nil {
		return // nobody receives the answer
	}
	c.answered[of]++
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, answerOf(of))
}

// answerOf returns the answer of a counter to the request with this X-Of.
func answerOf(of string) string { return fmt.Sprintf(`{"of":%q}`, of) }

// newCounter starts an engine that counts.
func newCounter(t *testing.T, work time.Duration) (*counter, *engine) {
	t.Helper()
	c := &counter{work: work, answered: map[string]int{}}
	return c, newEngine(t, c.ServeHTTP)
}

// ended requires that the engine answered each of the requests once, that no more than slots
// ran at a time, and that none runs.
func (c *counter) ended(t *testing.T, slots int, requests ...string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	want := map[string]int{}
	for _, of := range requests {
		want[of] = 1
	}
	require.Equal(t, want, c.answered)
	require.LessOrEqual(t, c.most, slots)
	require.Zero(t, c.running)
}
