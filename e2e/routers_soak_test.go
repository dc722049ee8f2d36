// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/internal/pause"
)

const (
	soakKeepalive = time.Second
	soakHolds     = 100
	soakRate      = 50 // warm requests a second
)

// soakSlots are the slots of the engines: two of m, and the one of cold.
var soakSlots = []int{8, 8, 16}

// soakMap places a model that is always up, and one whose engine comes and goes.
const soakMap = `{"generation": %d, "placements": [
	{"model": "m", "kind": "chat", "site": "here", "scale_from_zero": true, "hold_budget": "60s"},
	{"model": "cold", "kind": "chat", "site": "here", "scale_from_zero": true, "hold_budget": "60s"}]}`

// soak is a site under load whose parts are restarted one after the other.
type soak struct {
	*routers
	front   *site     // the load balancer
	engines []*engine // of m, and the last one of cold
	counts  []*counter
	agents  []*process // of the engines of m
	counted atomic.Int64
	asleep  time.Duration // how long the engine of cold is away at a time
	pause   time.Duration // after each part

	mu      sync.Mutex
	sent    int
	retried int
	lost    []string
	silence time.Duration // the longest without a byte for a client
	during  string        // what was restarted then
	restart string        // what is being restarted
}

// startSoak starts a site, two engines of m and one of cold.
func startSoak(t *testing.T) *soak {
	t.Helper()
	s := &soak{routers: startRouters(t, 3,
		"--wake-keepalive", soakKeepalive.String(), "--wake-hold-max=1000", "--wake-hold-max-per-key=1000", "--queue-depth=1000",
		"--request-timeout=60s", "--drain-timeout=60s"), asleep: 3 * time.Second, pause: 500 * time.Millisecond}
	s.routers.putMap(fmt.Sprintf(soakMap, 1))
	s.front = s.routers.front()
	for n, slots := range soakSlots {
		c, e := newCounter(t, 20*time.Millisecond)
		s.counts, s.engines = append(s.counts, c), append(s.engines, e)
		if n < 2 {
			s.agents = append(s.agents, s.agent(fmt.Sprint("warm-", n), e.addr(), slots))
		}
	}
	return s
}

// run repeats the round under load until the time is over, and returns how often. Then all
// requests have been answered.
func (s *soak) run(round func()) (rounds int) {
	ctx, stop := context.WithCancel(s.t.Context())
	defer stop()
	var load, others sync.WaitGroup
	load.Go(func() { s.warm(ctx) })
	for n := range soakHolds {
		load.Go(func() { s.holds(ctx, n) })
	}
	others.Go(func() { s.cold(ctx) })
	repeat(ctx, &others, 500*time.Millisecond, func(n int) { s.push(n + 2) })
	until := time.Now().Add(time.Duration(number(s.t, "HOLDGATE_SOAK_SECONDS", 1)) * time.Second)
	for ; rounds == 0 || time.Now().Before(until); rounds++ {
		round()
	}
	stop()
	others.Wait()
	s.startAgent("cold-last", "cold", s.engines[2].addr(), soakSlots[2])
	load.Wait()
	s.t.Logf("%d rounds, %d requests, %d retries by clients, longest silence %v (%s)", rounds, s.sent, s.retried, s.silence, s.during)
	return rounds
}

// Each part of a site is restarted in turn, while 50 requests a second are served and 100 are
// held. No request is lost or answered twice, no client has to try again, and none waits for a
// byte longer than a keepalive interval and 2 s.
func TestASiteIsRestartedPartByPart(t *testing.T) {
	s := startSoak(t)
	s.run(s.restartAll)
	s.atRest()
	require.Zero(t, s.retried)
	require.Less(t, s.silence, soakKeepalive+2*time.Second, s.during)
	answered := 0
	for _, c := range s.counts {
		for of, times := range c.answered {
			require.Equal(t, 1, times, of)
		}
		answered += len(c.answered)
	}
	require.Equal(t, s.sent, answered, "no request was answered by two engines")
}

// Each part of a site crashes in turn, under the same load. Clients that try again twice, as
// SDKs do, lose no request, and no engine gets more requests than its slots.
func TestTheCrashesOfASiteLoseNothing(t *testing.T) {
	s := startSoak(t)
	// So that no request waits for longer than two crashes: SDKs try no more often.
	s.asleep, s.pause = 2*time.Second, 1500*time.Millisecond
	s.run(s.crashAll)
	s.atRest()
}

// push pushes a map to one router, which the others get from it.
func (s *soak) push(generation int) {
	r := s.all[generation%len(s.all)].putMap(fmt.Sprintf(soakMap, generation))
	if r.err == nil && r.status != http.StatusOK { // the router may be restarting
		s.t.Errorf("map %d: %d %s", generation, r.status, r.body)
	}
}

// cold has the engine of the model cold come and go.
func (s *soak) cold(ctx context.Context) {
	for n := 0; ; n++ {
		if !pause.For(ctx, s.asleep) {
			return
		}
		p := s.startAgent(fmt.Sprint("cold-", n), "cold", s.engines[2].addr(), 16)
		pause.For(ctx, s.asleep/2+500*time.Millisecond)
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		_ = p.ends()
	}
}

// step does something to a part.
func (s *soak) step(what string, do func()) {
	s.mu.Lock()
	s.restart = what
	s.mu.Unlock()
	begin := time.Now()
	do()
	s.t.Logf("%s: %v", what, time.Since(begin).Round(time.Millisecond))
	time.Sleep(s.pause)
}

// restartAll restarts each part once.
func (s *soak) restartAll() {
	for n, r := range s.all {
		s.step(fmt.Sprint("router ", n), func() { s.restartRouter(r, false) })
		s.step(fmt.Sprintf("router %d and its Envoy", n), func() { s.restartRouter(r, true) })
	}
	s.step("Valkey", func() {
		s.valkey.Stop()
		time.Sleep(time.Second)
		s.valkey.Restart()
	})
	for n, a := range s.agents {
		s.step(fmt.Sprint("agent ", n), func() {
			require.NoError(s.t, a.cmd.Process.Signal(syscall.SIGTERM))
			require.NoError(s.t, a.ends())
			s.agents[n] = s.agent(fmt.Sprint("warm-", n), s.engines[n].addr(), soakSlots[n])
		})
	}
}

// crashAll has each part crash once.
func (s *soak) crashAll() {
	for n, r := range s.all {
		s.step(fmt.Sprintf("router %d is killed", n), func() {
			r.kill()
			time.Sleep(500 * time.Millisecond)
			s.startRouter(r)
		})
		s.step(fmt.Sprintf("Envoy %d is killed", n), func() {
			r.killEnvoy()
			r.startEnvoy()
		})
	}
	s.step("Valkey is silent", func() {
		resume := s.valkey.Pause()
		time.Sleep(2 * time.Second)
		resume()
	})
	for n, a := range s.agents {
		s.step(fmt.Sprintf("agent %d is killed", n), func() {
			require.NoError(s.t, a.cmd.Process.Kill())
			require.Error(s.t, a.ends())
			s.agents[n] = s.agent(fmt.Sprint("warm-", n), s.engines[n].addr(), soakSlots[n])
		})
	}
}

// restartRouter restarts a router, and its Envoy, once that carries nothing, if both is true.
func (s *soak) restartRouter(r *router, both bool) {
	r.terminate()
	require.NoError(s.t, r.process.ends())
	if both {
		idle := 0
		r.eventually("the Envoy carries nothing, and gets nothing", func() bool {
			var load envoy.Load
			idle++
			if envoy.NewAdmin(r.envoy.Admin()).AddTo(s.t.Context(), &load) != nil || load.Edge > 0 {
				idle = 0
			}
			return idle > 100 // it is asked every 5 ms, and the load balancer checks every 200 ms
		})
		require.NoError(s.t, r.envoy.Stop(5*time.Second))
		r.startEnvoy()
	}
	s.startRouter(r)
}

// startRouter starts a router and waits until it can serve m.
func (s *soak) startRouter(r *router) {
	r.serve()
	r.ready()
	r.knows("warm-0")
	r.knows("warm-1")
}

// warm sends requests for the model that is up.
func (s *soak) warm(ctx context.Context) {
	tick := time.NewTicker(time.Second / soakRate)
	defer tick.Stop()
	var all sync.WaitGroup
	defer all.Wait()
	for ctx.Err() == nil {
		<-tick.C
		all.Go(func() { s.client("m", false) })
	}
}

// holds sends one request after the other for the model that sleeps most of the time. Every
// fifth client wants no keepalives.
func (s *soak) holds(ctx context.Context, n int) {
	for ctx.Err() == nil {
		s.client("cold", n%5 == 0)
	}
}

// client sends a request as an SDK does, which tries again twice, and records how it ended.
func (s *soak) client(model string, silent bool) {
	of := fmt.Sprint(model, "-", s.counted.Add(1))
	headers := []string{"X-Of", of, "X-Client-Request-ID", uuid.NewString()}
	if silent {
		headers = append(headers, "X-Wake-Keepalive", "off")
	}
	var problem string
	for try := range 3 {
		ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Minute)
		var quiet time.Duration
		problem, quiet = s.try(s.front.request(ctx, http.MethodPost, chatPath, chatBody(model, true), headers...), of)
		cancel()
		s.mu.Lock()
		if try > 0 {
			s.retried++
		}
		if !silent && quiet > s.silence {
			s.silence, s.during = quiet, fmt.Sprint(s.restart, ", ", of)
		}
		s.mu.Unlock()
		if problem == "" {
			break
		}
		s.mu.Lock()
		s.t.Logf("during %s: try %d of %s: %s", s.restart, try, of, problem)
		s.mu.Unlock()
		time.Sleep(500 * time.Millisecond) // as SDKs do
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent++
	if problem != "" {
		s.lost = append(s.lost, of+": "+problem)
	}
}

// try sends a request and returns what was wrong with its answer, and the longest time without
// a byte of it.
func (s *soak) try(r *http.Request, of string) (problem string, quiet time.Duration) {
	last := time.Now()
	heard := func() {
		quiet = max(quiet, time.Since(last))
		last = time.Now()
	}
	resp, err := s.front.http.Do(r)
	heard()
	if err != nil {
		return err.Error(), quiet
	}
	defer resp.Body.Close()
	var text strings.Builder
	chunk := make([]byte, 4096)
	for err == nil {
		var n int
		n, err = resp.Body.Read(chunk)
		heard()
		text.Write(chunk[:n])
	}
	answer := strings.ReplaceAll(text.String(), comment, "")
	switch {
	case err != io.EOF: //nolint:errorlint // Read returns it as it is
		return fmt.Sprintf("%d, cut after %q: %v", resp.StatusCode, text.String(), err), quiet
	case resp.StatusCode != http.StatusOK || answer != answerOf(of):
		return fmt.Sprintf("%d %s", resp.StatusCode, text.String()), quiet
	}
	return "", quiet
}

// atRest requires that no request was lost, that no engine had more requests than slots, and
// that every count is back to 0.
func (s *soak) atRest() {
	s.t.Helper()
	require.Empty(s.t, s.lost)
	for n, c := range s.counts {
		require.LessOrEqual(s.t, c.most, soakSlots[n])
		require.Zero(s.t, c.running)
	}
	for _, r := range s.all {
		r.metric(`hivenet_pending_demand{model="cold"}`, "0")
		for _, id := range []string{"warm-0", "warm-1", "cold-last"} {
			r.metric(fmt.Sprintf("hivenet_agent_slots_in_use{agent_id=%q}", id), "0")
		}
		r.metric(`hivenet_site_pending_demand{model="cold"}`, "0")
	}
}
