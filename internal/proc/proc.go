// SPDX-License-Identifier: Apache-2.0

// Package proc starts child processes that cannot outlive this one, and ends
// them in an orderly way.
//
// Every child leads its own process group, so that Ctrl-C in a terminal reaches only this
// process, which then ends its children in the right order. The kernel sends a child
// SIGTERM when the thread that started it ends, so all are started from one thread that
// lasts as long as this process. That does not reach what a child has started, and a child
// may ignore it: a guard ends the whole group when this process is killed.
package proc

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// Process is a started child.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

type startRequest struct {
	cmd    *exec.Cmd
	result chan error
}

// starts returns the channel of the thread that starts children.
var starts = sync.OnceValue(func() chan<- startRequest {
	requests := make(chan startRequest)
	go func() {
		runtime.LockOSThread()
		for r := range requests {
			r.result <- r.cmd.Start()
		}
	}()
	return requests
})

// Start starts cmd. The caller must call Stop, or wait for Done.
func Start(cmd *exec.Cmd) (*Process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.SysProcAttr.Pdeathsig = syscall.SIGTERM
	g := newGuard()
	result := make(chan error)
	starts() <- startRequest{cmd: cmd, result: result}
	if err := <-result; err != nil {
		g.dismiss()
		return nil, fmt.Errorf("starting %s: %w", cmd.Path, err)
	}
	p := &Process{cmd: cmd, done: make(chan struct{})}
	g.watch(p.Pid())
	go func() {
		p.err = cmd.Wait()
		g.dismiss()
		close(p.done)
	}()
	return p, nil
}

// Pid returns the process id, which is also the id of its group.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done returns a channel that is closed when the process has ended and its output was read.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err returns how the process ended: nil for exit status 0. It is valid once Done is closed.
func (p *Process) Err() error { return p.err }

// Signal sends sig to the whole process group. It is no error when the group has ended.
func (p *Process) Signal(sig syscall.Signal) error {
	if err := syscall.Kill(-p.Pid(), sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("sending %v to process group %d: %w", sig, p.Pid(), err)
	}
	return nil
}

// Stop sends SIGTERM to the process group, SIGKILL to what is left of it after grace, and
// returns when the process has ended.
func (p *Process) Stop(grace time.Duration) error {
	select {
	case <-p.done:
	default:
		if err := p.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-p.done:
		case <-timer.C:
		}
	}
	// A child of the process may outlive it.
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.done
	return nil
}

// Describe returns the text of how a process ended.
func Describe(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}
