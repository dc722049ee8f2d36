// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// wire is an agent's way to its router, which a test cuts.
type wire struct {
	to string

	mu   sync.Mutex
	conn net.Conn
}

func (c *wire) dial(string) (net.Conn, error) {
	conn, err := net.Dial("unix", c.to)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn = conn
	return conn, nil
}

func (c *wire) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.conn.Close()
}

// A Wake is sent before, while or after the connection that it takes is cut.
func TestWakeThatMeetsAReconnectIsNotLost(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	c := &wire{to: strings.TrimPrefix(r.target, "unix://")}
	cfg := onDemand(t, r, "serve")
	cfg.IdleTimeout = time.Millisecond
	cfg.dial = c.dial
	a := start(t, cfg)
	r.await("agent registered")
	for i := range 9 {
		time.AfterFunc(time.Duration(i)*100*time.Microsecond, c.cut)
		r.SetWanted("llama", true)
		r.await("ready")
		r.SetWanted("llama", false)
		a.await("engine stopped")
	}
}

func TestRouterThatRestartsWhileAModelWakesFindsItServing(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/agents.sock"
	r := routerAt(t, path)
	cfg := onDemand(t, r, "slow")
	a := start(t, cfg)
	r.SetWanted("llama", true)
	a.await("starting the engine")
	r.server.Stop()
	a.await("not connected to the router")
	r = routerAt(t, path)
	r.SetWanted("llama", true)
	require.Equal(t, "waking", r.await("agent registered").State, "it is on its way already")
	r.await("ready")
	pid := enginePid(t, cfg)
	a.stop(t)
	for _, ev := range a.list {
		require.NotEqual(t, "starting the engine", ev.Message, "it was started once")
	}
	require.False(t, alive(pid))
}

func TestAgentThatRestartsWhileItsEngineStartsIsWokenAgain(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	cfg := onDemand(t, r, "slow")
	a := start(t, cfg)
	r.SetWanted("llama", true)
	a.await("starting the engine")
	a.stop(t)
	r.await("agent left")
	start(t, cfg)
	r.await("ready")
	require.Equal(t, 1, r.Serving(llama))
	require.Empty(t, r.failed)
}

// A Wake that follows a Sleep at once may find the engine let go, but not yet
// stopped.
func TestWakeRightAfterASleepIsNotLost(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	cfg := onDemand(t, r, "serve")
	cfg.IdleTimeout = time.Millisecond
	start(t, cfg)
	r.await("agent registered")
	for range 20 {
		r.SetWanted("llama", true)
		r.await("ready")
		r.SetWanted("llama", false)
		for r.Serving(llama) > 0 {
			runtime.Gosched()
		}
	}
}
