// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/holdgate/holdgate/internal/proc"
)

// drainTime is how long a child's output may keep its end from being noticed,
// when a grandchild still holds the pipe.
const drainTime = 200 * time.Millisecond

// How long the next start waits after starts that failed or engines that ended
// right away, in a row. The first retry is free.
const (
	firstBackoff = time.Second
	maxBackoff   = 30 * time.Second
	// settled is how long an engine must serve for its past to be forgotten.
	settled = 30 * time.Second
)

var (
	errStopped   = errors.New("every router let it go")
	errEngineEnd = errors.New("the engine ended")
)

// engine is the agent's child process.
type engine struct {
	proc   *proc.Process
	stdout *lineWriter
	stderr *lineWriter
	last   *lastWords
}

// backoff is how long the next start waits after so many failures in a row.
func backoff(failures int) time.Duration {
	if failures < 2 {
		return 0
	}
	d := min(firstBackoff<<min(failures-2, 10), maxBackoff)
	return d/2 + rand.N(d/2) //nolint:gosec // jitter is no secret
}

// shortWait is how long an agent of a group waits before it starts an engine that has
// failed. For longer it must not keep the group's room, so the wake fails.
const shortWait = 2 * time.Second

// drive starts the engine whenever core wants it, and stops it when core does
// not or ctx ends. No process is left when it returns. A Wake that comes too
// soon after failures waits, or fails when the agent is in a group.
func (a *agent) drive(ctx context.Context) {
	failures, notBefore := 0, time.Time{}
	for {
		for !a.core.wanted() {
			select {
			case <-ctx.Done():
				return
			case <-a.core.kick:
			}
		}
		if wait := time.Until(notBefore); wait > shortWait && a.cfg.Group.Name != "" {
			a.core.woke(&failure{
				reason: fmt.Sprintf("the last %d starts of the engine failed, and it is started again in %v at the earliest", failures, wait.Round(time.Second)),
				retry:  wait,
			})
			continue
		} else if wait > 0 {
			a.log.Info().Stringer("for", wait.Round(time.Millisecond)).Int("failures", failures).Msg("waiting before the next start")
			if !pause(ctx, wait) {
				return
			}
			continue // it may be wanted no more
		}
		pause := backoff(failures + 1)
		if a.cycle(ctx, pause) {
			failures = 0
		} else {
			failures++
			notBefore = time.Now().Add(pause)
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// cycle is one life of the engine, from its start to its end. It reports false
// when the life was cut short by the engine itself, which is not started again for
// pause then.
func (a *agent) cycle(ctx context.Context, pause time.Duration) bool {
	begin := time.Now()
	a.core.set(waking, false)
	a.log.Info().Strs("models", a.cfg.Models).Msg("starting the engine")
	e, err := a.wake(ctx)
	if err != nil {
		if ctx.Err() != nil || errors.Is(err, errStopped) {
			a.core.set(asleep, false)
			return true
		}
		a.log.Warn().Err(err).Msg("the engine did not start")
		failed := *failureOf(err)
		failed.retry = pause
		a.core.woke(&failed)
		return false
	}
	a.log.Info().Stringer("after", time.Since(begin).Round(time.Millisecond)).Msg("engine is ready")
	a.core.woke(nil)
	ready := time.Now()
	if err := a.serve(ctx, e); err != nil {
		a.log.Warn().Err(err).Msg("the engine ended by itself")
		a.core.ended()
		return time.Since(ready) >= settled
	}
	a.log.Info().Msg("engine stopped")
	a.core.set(asleep, false)
	return true
}

// wake starts the engine and waits until it is ready, with another port if somebody
// else has taken the one that it was given. On an error nothing runs.
func (a *agent) wake(ctx context.Context) (*engine, error) {
	for try := 1; ; try++ {
		e, err := a.startAndAwait(ctx)
		if a.cfg.Ports == nil || try == maxPortTries || !errors.Is(err, errNotOurs) {
			return e, err
		}
		a.log.Warn().Err(err).Msg("starting the engine again, with another port")
	}
}

// startAndAwait is wake with one port.
func (a *agent) startAndAwait(ctx context.Context) (*engine, error) {
	release, err := a.claim(ctx)
	if err != nil {
		return nil, err
	}
	e, err := a.start(release)
	if err != nil {
		return nil, &failure{reason: "the engine could not be started", detail: err.Error()}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, a.cfg.WakeTimeout,
		fmt.Errorf("the engine was not ready within %v", a.cfg.WakeTimeout))
	defer cancel()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	go func() {
		select {
		case <-e.proc.Done():
			end(errEngineEnd)
		case <-ctx.Done():
		}
	}()
	var unwanted sync.WaitGroup
	unwanted.Go(func() { a.endWhenUnwanted(ctx, end) })
	problem := a.health.await(ctx, a.doubt())
	if problem == nil {
		problem = a.checkOwner(ctx, e)
	}
	if problem == nil {
		problem = a.ready(ctx)
	}
	cause := context.Cause(ctx)
	end(nil)
	unwanted.Wait() // it must not take a kick that is meant for serve
	select {
	case <-e.proc.Done(): // also when something else answered in its place
		problem = errEngineEnd
	default:
	}
	if problem == nil {
		return e, nil
	}
	a.stop(e)
	switch {
	case errors.Is(problem, errNotOurs):
		return nil, problem
	case errors.Is(problem, errEngineEnd), errors.Is(cause, errEngineEnd):
		if a.cfg.Ports != nil && len(listening(a.engineAt())) > 0 {
			return nil, fmt.Errorf("%w: %w", errNotOurs, e.obituary())
		}
		return nil, e.obituary()
	case errors.Is(cause, errStopped), errors.Is(cause, context.Canceled):
		return nil, cause
	default:
		return nil, &failure{reason: cause.Error(), detail: problem.Error()}
	}
}

// endWhenUnwanted ends a wait when core no longer wants the engine.
func (a *agent) endWhenUnwanted(ctx context.Context, end context.CancelCauseFunc) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.core.kick:
			if !a.core.wanted() {
				end(errStopped)
				return
			}
		}
	}
}

// serve watches a healthy engine until it ends by itself, which is an error, or
// is stopped.
func (a *agent) serve(ctx context.Context, e *engine) error {
	watching, unwatch := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.watch(watching)
	}()
	defer func() {
		unwatch()
		<-done
	}()
	for {
		var again <-chan time.Time
		if !a.core.keeps() {
			if !a.busy(ctx) {
				break
			}
			a.sayBusy()
			again = time.After(retryEvery)
		}
		select {
		case <-e.proc.Done():
			a.stop(e) // what it may have left in its process group
			return e.obituary()
		case <-ctx.Done():
			a.stop(e)
			return nil
		case <-a.core.kick:
		case <-again:
		}
	}
	a.stop(e)
	return nil
}

// busy says whether the engine tells of requests. The routers know of none, but a
// router that was restarted does not know what Envoy still carries.
func (a *agent) busy(ctx context.Context) bool {
	s := a.signals(ctx)
	return s.Running != nil && *s.Running > 0 || s.Waiting != nil && *s.Waiting > 0
}

// sayBusy logs once in the life of an engine why it is not stopped.
func (a *agent) sayBusy() {
	if a.saidBusy.CompareAndSwap(false, true) {
		a.log.Info().Msg("the engine still has requests: it is stopped after them")
	}
}

// start runs the command, after it has released the port that is the engine's.
func (a *agent) start(release func()) (*engine, error) {
	words := a.fillPort(a.cfg.Exec)
	cmd := exec.Command(words[0], words[1:]...) //nolint:gosec,noctx // the user's command; proc ends it
	cmd.Dir = a.cfg.Dir
	cmd.Env = append(os.Environ(), a.fillPort(a.cfg.Env)...)
	cmd.WaitDelay = drainTime
	last := &lastWords{secrets: secretsOf(a.cfg.Exec, cmd.Env)}
	e := &engine{stdout: a.lines(a.cfg.Stdout, last), stderr: a.lines(a.cfg.Stderr, last), last: last}
	cmd.Stdout, cmd.Stderr = e.stdout, e.stderr
	release()
	p, err := proc.Start(cmd)
	if err != nil {
		return nil, err
	}
	a.saidBusy.Store(false)
	e.proc = p
	return e, nil
}

func (a *agent) stop(e *engine) {
	if err := e.proc.Stop(a.cfg.StopGrace); err != nil {
		a.log.Error().Err(err).Int("pid", e.proc.Pid()).Msg("the engine could not be stopped")
	}
	e.stdout.flush()
	e.stderr.flush()
}

// obituary says how an ended engine ended, with the last it had to say.
func (e *engine) obituary() error {
	how := e.proc.Err()
	if errors.Is(how, exec.ErrWaitDelay) {
		how = nil
	}
	return &failure{reason: "the engine ended with " + proc.Describe(how), detail: e.last.String()}
}

// failure is why an engine is not up. Callers of the API are told the reason alone:
// the detail may be the engine's own words, with what nobody else may see.
type failure struct {
	reason, detail string

	retry time.Duration // the next wake would fail as well for so long
}

func (f *failure) Error() string {
	if f.detail == "" {
		return f.reason
	}
	return f.reason + ": " + f.detail
}

// failureOf is an error as a failure, with no more than that as its reason.
func failureOf(err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	return &failure{reason: "the engine did not start", detail: err.Error()}
}

// portFree waits a moment for the engine's address to be free: an engine of an
// agent before this one may be about to end. Whatever else answers there would
// be taken for the engine.
func (a *agent) portFree(ctx context.Context) error {
	address := a.engineAt().String()
	begin := time.Now()
	for {
		dialer := net.Dialer{Timeout: time.Second}
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if err != nil {
			return ctx.Err()
		}
		_ = conn.Close()
		if time.Since(begin) > a.cfg.StopGrace {
			return &failure{reason: "the engine's port is in use", detail: "something else listens on " + address}
		}
		if !pause(ctx, eagerPoll) {
			return ctx.Err()
		}
	}
}

// lines makes a writer for one of the engine's outputs.
func (a *agent) lines(w io.Writer, last *lastWords) *lineWriter {
	if w == nil {
		w = io.Discard
	}
	return &lineWriter{to: w, prefix: "[" + a.cfg.ID + "] ", last: last}
}
