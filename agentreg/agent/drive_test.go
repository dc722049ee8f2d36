// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/agentreg/agent/engines"
	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
)

// start runs an agent until the test ends.
func start(t *testing.T, cfg Config) *running {
	t.Helper()
	a := &running{events: newEvents(t), done: make(chan error, 1)}
	cfg.Log = zerolog.New(a.events)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	a.end = cancel
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.done <- Run(ctx, cfg)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return a
}

func containsEnv(environ []byte, entry string) bool {
	return slices.ContainsFunc(bytes.Split(environ, []byte{0}), func(e []byte) bool { return string(e) == entry })
}

func TestEngineIsStartedOnWakeAndStoppedWhenIdle(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	cfg := onDemand(t, r, "serve")
	cfg.IdleTimeout = 50 * time.Millisecond
	a := start(t, cfg)
	r.await("agent registered")
	require.Zero(t, enginePid(t, cfg))
	for range 2 {
		r.SetWanted("llama", true)
		r.await("waking")
		r.await("ready")
		pid := enginePid(t, cfg)
		require.NotZero(t, pid)
		slot, _ := r.TakeFrom(llama, nil)
		require.Equal(t, strings.TrimPrefix(cfg.BackendURL, "http://"), slot.Agent().Address)
		r.SetWanted("llama", false)
		slot.Release()
		require.Equal(t, "idle", r.await("asleep again").Cause)
		require.False(t, alive(pid))
	}
	a.stop(t)
	require.Equal(t, "sent Bye", r.await("agent left").Cause)
}

func TestKilledEngineIsNoticedAtOnceAndWokenAgain(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	cfg := onDemand(t, r, "serve")
	a := start(t, cfg)
	r.await("agent registered")
	r.SetWanted("llama", true)
	r.await("ready")
	r.SetWanted("llama", false)
	require.NoError(t, syscall.Kill(enginePid(t, cfg), syscall.SIGKILL))
	begin := time.Now()
	r.await("asleep again")
	require.Less(t, time.Since(begin), 2*time.Second, "the health poll alone takes longer")
	require.Contains(t, a.await("the engine ended by itself").Error, "signal: killed: engine of mode serve")
	require.Zero(t, r.Serving(llama))
	r.SetWanted("llama", true)
	r.await("ready")
	pid := enginePid(t, cfg)
	a.stop(t)
	require.False(t, alive(pid))
}

func TestEngineThatDoesNotStartIsReportedWithItsLastWords(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	a := start(t, onDemand(t, r, "crash"))
	r.await("agent registered")
	r.SetWanted("llama", true)
	require.Equal(t, "the engine ended with exit status 3", <-r.failed, "what callers may know")
	require.Equal(t, "engine of mode crash | loading HF_TOKEN=*** | out of memory", r.WakeDetail("llama"))
	require.Contains(t, a.await("the engine did not start").Error, "exit status 3: engine of mode crash | loading HF_TOKEN=*** |")
	require.Contains(t, r.Agents()[0].LastWakeError, "out of memory")
	require.False(t, r.Waking("llama"))
	require.Equal(t, 1, r.Models()[0].Asleep)
	a.stop(t)
}

func TestEngineThatKeepsCrashingIsStartedLessOften(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	a := start(t, onDemand(t, r, "crash"))
	r.await("agent registered")
	wake := func() {
		r.SetWanted("llama", false)
		r.SetWanted("llama", true)
		<-r.failed
	}
	wake()
	wake()
	begin := time.Now()
	wake()
	a.await("waiting before the next start")
	require.GreaterOrEqual(t, time.Since(begin), firstBackoff/2-100*time.Millisecond)
}

func TestAgentOfAGroupDoesNotKeepTheRoomUntilItsNextStart(t *testing.T) {
	t.Parallel()
	cfg := onDemand(t, &router{target: "unix:///none"}, "crash")
	cfg.Group.Name = "gpu0"
	a, err := newAgent(t.Context(), cfg.withDefaults())
	require.NoError(t, err)
	s := a.core.join()
	ctx, end := context.WithCancel(t.Context())
	var driving sync.WaitGroup
	driving.Go(func() { a.drive(ctx) })
	defer driving.Wait()
	defer end()
	for seq := uint64(1); ; seq++ {
		begin := time.Now()
		a.core.onWake(s, wakeMessage(seq))
		var result *pb.WakeResult
		for result == nil {
			<-s.changed
			for _, m := range a.core.messages(s) {
				if m.GetWakeResult() != nil {
					result = m.GetWakeResult()
				}
			}
		}
		if strings.HasPrefix(result.GetReason(), "the engine ended") {
			require.Less(t, seq, uint64(6), "it waits longer with each failure")
			continue
		}
		require.Regexp(t, `^the last \d starts of the engine failed, and it is started again in \ds at the earliest$`, result.GetReason())
		require.Greater(t, result.GetRetryAfter().AsDuration(), maxGroupWait)
		require.Less(t, time.Since(begin), maxGroupWait, "the wake fails at once")
		require.False(t, a.core.wanted())
		return
	}
}

func TestBackoffGrowsToABound(t *testing.T) {
	t.Parallel()
	require.Zero(t, backoff(0))
	require.Zero(t, backoff(1), "the first retry is free")
	for failures, most := range map[int]time.Duration{2: firstBackoff, 3: 2 * firstBackoff, 6: 16 * firstBackoff, 7: maxBackoff, 1000: maxBackoff} {
		for range 100 {
			d := backoff(failures)
			require.GreaterOrEqual(t, d, most/2)
			require.Less(t, d, most)
		}
	}
}

func TestLastWordsAreAFewShortLinesForPeople(t *testing.T) {
	t.Parallel()
	last := &outputTail{}
	out := &lineWriter{to: io.Discard, tail: last}
	errs := &lineWriter{to: io.Discard, tail: last}
	_, _ = out.Write([]byte("forgotten\none\r\n\n  \n"))
	_, _ = errs.Write([]byte("\x1b[31mERROR\x1b[0m\ttwo \xff\n" + strings.Repeat("é", 100)))
	errs.flush()
	require.Equal(t, "one | ERROR two ? | "+strings.Repeat("é", 70)+"…", last.String())
}

func TestLastWordsHaveNoSecretsAndNothingThatCannotBeSeen(t *testing.T) {
	t.Parallel()
	command := []string{"engine", "--api-key", "sk-12345678", "--ui-password=pa55word", "--model-token-limit", "4096", "--port", "12345678"}
	last := &outputTail{secrets: newSecretReplacer(command, []string{"HF_TOKEN=hf_abcdefgh", "HOME=/home/engine", "EMPTY_KEY="})}
	last.add("key sk-12345678, pa55word, hf_abcdefgh; 4096 12345678 /home/engine")
	last.add("left\u202eright\u200b!")
	require.Equal(t, "key ***, ***, ***; 4096 12345678 /home/engine | left right !", last.String())
}

func TestCommandThatDoesNotExistIsReported(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	cfg := onDemand(t, r, "serve")
	cfg.Exec = []string{"/nonexistent/engine"}
	start(t, cfg)
	r.SetWanted("llama", true)
	require.Equal(t, "the engine could not be started", <-r.failed)
	require.Contains(t, r.WakeDetail("llama"), "no such file or directory")
}

func TestEngineThatIsNeverHealthyIsStoppedAndReported(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	cfg := onDemand(t, r, "never ready")
	cfg.WakeTimeout = 400 * time.Millisecond
	start(t, cfg)
	r.SetWanted("llama", true)
	require.Equal(t, "the engine was not ready within 400ms", <-r.failed)
	require.Contains(t, r.WakeDetail("llama"), "checking health: ")
	require.Zero(t, enginePid(t, cfg))
}

func TestEngineThatNobodyWaitsForMakesRoomWhileItStarts(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	one, two := onDemand(t, r, "never ready"), onDemand(t, r, "serve")
	two.ID, two.Models = "b", []string{"qwen"}
	one.Group.Name, two.Group.Name = "gpu0", "gpu0"
	a := start(t, one)
	start(t, two)
	r.SetWanted("llama", true)
	a.await("starting the engine")
	r.SetWanted("qwen", true)
	r.SetWanted("llama", false)
	require.Equal(t, "qwen", r.await("ready").Model)
	require.Zero(t, enginePid(t, one))
}

func TestEngineThatIgnoresSigtermIsKilledAfterTheGrace(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	cfg := onDemand(t, r, "stubborn")
	cfg.StopGrace = 200 * time.Millisecond
	a := start(t, cfg)
	r.SetWanted("llama", true)
	r.await("ready")
	pid := enginePid(t, cfg)
	require.True(t, alive(pid))
	begin := time.Now()
	a.stop(t)
	require.False(t, alive(pid))
	require.GreaterOrEqual(t, time.Since(begin), cfg.StopGrace)
}

func TestEndWhileTheEngineStartsLeavesNoProcess(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	cfg := onDemand(t, r, "never ready")
	var out lockedBuffer
	cfg.Stderr = &out
	a := start(t, cfg)
	r.SetWanted("llama", true)
	out.await(t, "[a] engine of mode never ready\n")
	pid := enginePid(t, cfg)
	require.True(t, alive(pid))
	a.stop(t)
	require.False(t, alive(pid))
}

func TestEngineIsKeptUntilEveryRouterLetItGo(t *testing.T) {
	t.Parallel()
	one, two := newRouter(t), newRouter(t)
	cfg := onDemand(t, one, "serve")
	cfg.Routers = append(cfg.Routers, two.target)
	cfg.IdleTimeout = 50 * time.Millisecond
	a := start(t, cfg)
	one.await("agent registered")
	two.await("agent registered")
	two.SetWanted("llama", true)
	two.await("ready")
	pid := enginePid(t, cfg)
	a.await("engine is ready")
	// One lets it go; two still wants it.
	a.await("a router released the engine")
	require.Zero(t, one.Serving(llama))
	require.True(t, alive(pid))
	// A wake of the running engine takes no time and starts nothing.
	one.SetWanted("llama", true)
	one.await("ready")
	require.Equal(t, pid, enginePid(t, cfg))
	one.SetWanted("llama", false)
	two.SetWanted("llama", false)
	one.await("asleep again")
	two.await("asleep again")
	require.False(t, alive(pid))
}

func TestRouterThatRestartsFindsTheRunningEngine(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/agents.sock"
	r := routerAt(t, path)
	cfg := onDemand(t, r, "serve")
	a := start(t, cfg)
	r.SetWanted("llama", true)
	r.await("ready")
	pid := enginePid(t, cfg)
	r.server.Stop()
	a.await("not connected to the router")
	r = routerAt(t, path)
	r.await("agent registered")
	require.Equal(t, 1, r.Serving(llama))
	require.Equal(t, pid, enginePid(t, cfg))
}

func TestForeignProcessOnTheAddressIsNotTakenForTheEngine(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	cfg := onDemand(t, r, "serve")
	cfg.StopGrace = 300 * time.Millisecond
	other := newRouter(t)
	squat := cfg
	squat.Routers = []string{other.target}
	start(t, squat)
	other.SetWanted("llama", true)
	other.await("ready")

	start(t, cfg)
	r.SetWanted("llama", true)
	require.Equal(t, "the engine's port is in use", <-r.failed)
	require.Equal(t, "something else listens on "+strings.TrimPrefix(cfg.BackendURL, "http://"), r.WakeDetail("llama"))
}

// lockedBuffer is an output that a test can wait for.
type lockedBuffer struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	once sync.Once
	more chan struct{}
}

func (b *lockedBuffer) signal() chan struct{} {
	b.once.Do(func() { b.more = make(chan struct{}, 1) })
	return b.more
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	notify(b.signal())
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func (b *lockedBuffer) await(t *testing.T, want string) {
	t.Helper()
	timeout := time.NewTimer(30 * time.Second)
	defer timeout.Stop()
	for {
		b.mu.Lock()
		got := b.buf.String()
		b.mu.Unlock()
		if strings.Contains(got, want) {
			return
		}
		select {
		case <-b.signal():
		case <-timeout.C:
			require.Failf(t, "output is missing", "%q in %q", want, got)
		}
	}
}

func TestEngineThatStillHasRequestsIsNotStopped(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(r *router, a *running){
		// After a restart the router counts no request.
		"by a router": func(r *router, _ *running) { r.SetWanted("llama", false) },
		"at the end of an agent without a router": func(r *router, a *running) {
			r.server.Stop()
			a.await("not connected to the router")
			a.end()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRouter(t)
			cfg := onDemand(t, r, "busy")
			cfg.Engine = engines.LlamaCpp
			cfg.IdleTimeout = 50 * time.Millisecond
			cfg.DrainTimeout = time.Minute
			a := start(t, cfg)
			r.await("agent registered")
			r.SetWanted("llama", true)
			r.await("ready")
			end(r, a)
			a.await("the engine still has requests: it is stopped after them")
			require.NotZero(t, enginePid(t, cfg))
			res, err := http.Post(cfg.BackendURL+"/done", "", nil)
			require.NoError(t, err)
			require.NoError(t, res.Body.Close())
			a.await("engine stopped")
			require.Zero(t, enginePid(t, cfg))
		})
	}
}
