// SPDX-License-Identifier: Apache-2.0

// Package proc starts child processes that do not outlive this process, and stops them.
//
// Each child leads its own process group, so that Ctrl-C in a terminal reaches only this
// process, which then stops its children in the right order. The kernel sends a child SIGTERM
// when the thread that started it ends, so all children are started from one thread that
// lasts as long as this process. The kernel does not send SIGTERM to the processes that a
// child has started, and a child may ignore it, so a guard ends the whole group if this
// process is killed.
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

// startRequests returns the channel of the thread that starts children.
var startRequests = sync.OnceValue(func() chan<- startRequest {
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
	startRequests() <- startRequest{cmd: cmd, result: result}
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

// Done returns a channel that is closed when the process has ended and its output has been
// read.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err returns how the process ended, nil for exit status 0. It may be called only after Done
// is closed.
func (p *Process) Err() error { return p.err }

// Signal sends sig to the whole process group. It returns nil if the group has ended.
func (p *Process) Signal(sig syscall.Signal) error {
	if err := syscall.Kill(-p.Pid(), sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("sending %v to process group %d: %w", sig, p.Pid(), err)
	}
	return nil
}

// Stop sends SIGTERM to the process group, SIGKILL to its remaining processes after grace,
// and returns when the process has ended.
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
	// Children of the process may outlive it.
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.done
	return nil
}

// Describe returns as text how a process ended, given the result of Err.
func Describe(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}
