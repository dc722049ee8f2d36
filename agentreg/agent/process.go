// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/holdgate/holdgate/internal/proc"
)

// outputDrainTime is how long the end of the engine's process may go unnoticed while a
// child of it still holds the pipe of its output.
const outputDrainTime = 200 * time.Millisecond

// engine is the agent's child process.
type engine struct {
	proc   *proc.Process
	stdout *lineWriter
	stderr *lineWriter
	tail   *outputTail
}

// start starts the command, after it has released the engine's port.
func (a *agent) start(release func()) (*engine, error) {
	words := a.fillPort(a.cfg.Exec)
	cmd := exec.Command(words[0], words[1:]...) //nolint:gosec,noctx // the user's command; proc ends it
	cmd.Dir = a.cfg.Dir
	cmd.Env = append(os.Environ(), a.fillPort(a.cfg.Env)...)
	cmd.WaitDelay = outputDrainTime
	tail := &outputTail{secrets: secretsOf(a.cfg.Exec, cmd.Env)}
	e := &engine{stdout: a.newLineWriter(a.cfg.Stdout, tail), stderr: a.newLineWriter(a.cfg.Stderr, tail), tail: tail}
	cmd.Stdout, cmd.Stderr = e.stdout, e.stderr
	release()
	p, err := proc.Start(cmd)
	if err != nil {
		return nil, err
	}
	a.busyLogged.Store(false)
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

// exitError is how the engine ended, with the last lines of its output.
func (e *engine) exitError() error {
	how := e.proc.Err()
	if errors.Is(how, exec.ErrWaitDelay) {
		how = nil
	}
	return &failure{reason: "the engine ended with " + proc.Describe(how), detail: e.tail.String()}
}

// failure is why an engine is not up. Clients get the reason alone: the detail may be
// output of the engine, which they must not see.
type failure struct {
	reason, detail string

	retry time.Duration // for how long the next wake would fail as well
}

func (f *failure) Error() string {
	if f.detail == "" {
		return f.reason
	}
	return f.reason + ": " + f.detail
}

// failureOf returns an error as a failure, whose reason does not quote it.
func failureOf(err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	return &failure{reason: "the engine did not start", detail: err.Error()}
}

// newLineWriter returns a writer for one of the engine's outputs.
func (a *agent) newLineWriter(w io.Writer, tail *outputTail) *lineWriter {
	if w == nil {
		w = io.Discard
	}
	return &lineWriter{to: w, prefix: "[" + a.cfg.ID + "] ", tail: tail}
}
