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

// outputDrainTime is how long the end of the engine is delayed while a child process of it
// still holds its output open.
const outputDrainTime = 200 * time.Millisecond

// engine is the agent's child process.
type engine struct {
	proc   *proc.Process
	stdout *lineWriter
	stderr *lineWriter
	tail   *outputTail
}

// start calls release, which frees the engine's port, and starts the command.
func (a *agent) start(release func()) (*engine, error) {
	words := a.fillPort(a.cfg.Exec)
	cmd := exec.Command(words[0], words[1:]...) //nolint:gosec,noctx // the user's command; proc ends it
	cmd.Dir = a.cfg.Dir
	cmd.Env = append(os.Environ(), a.fillPort(a.cfg.Env)...)
	cmd.WaitDelay = outputDrainTime
	tail := &outputTail{secrets: newSecretReplacer(a.cfg.Exec, cmd.Env)}
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

// exitError returns how the engine ended, with the last lines of its output.
func (e *engine) exitError() error {
	how := e.proc.Err()
	if errors.Is(how, exec.ErrWaitDelay) {
		how = nil
	}
	return &failure{reason: "the engine ended with " + proc.Describe(how), detail: e.tail.String()}
}

// failure is the error of an engine that is not up. Clients are shown only the reason: the
// detail may have output of the engine, which they must not see.
type failure struct {
	reason, detail string

	retry time.Duration // how long a new wake would fail as well
}

func (f *failure) Error() string {
	if f.detail == "" {
		return f.reason
	}
	return f.reason + ": " + f.detail
}

// failureOf returns err as a failure. Unless err is one, its text becomes the detail.
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
