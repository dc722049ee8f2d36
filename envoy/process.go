// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/holdgate/holdgate/internal/proc"
	"github.com/holdgate/holdgate/internal/regular"
)

const (
	bootstrapFile = "envoy.yaml"
	adminFile     = "envoy-admin.address"
	// startLimit is far above the 0.2 s that a start takes.
	startLimit = 30 * time.Second
	startPoll  = 20 * time.Millisecond
	// startGrace is how long an Envoy that did not become ready may take to end.
	startGrace = 2 * time.Second
)

// Options are the settings with which an Envoy is run.
type Options struct {
	// Bootstrap is its configuration as YAML or JSON.
	Bootstrap []byte
	// Dir is where the bootstrap and the admin address are written. It must exist, and
	// two Envoys may not share it.
	Dir string
	// Concurrency is the number of worker threads; 0 means one per CPU.
	Concurrency int
	// Log receives Envoy's output. It may be nil.
	Log io.Writer
	// LogLevel is one of Envoy's; empty means warning.
	LogLevel string
}

// Process is a running Envoy.
type Process struct {
	child *proc.Process
	edge  string
	admin string
}

// Start runs Envoy and returns when it is ready on all its listeners. ctx limits the
// start alone: a started Envoy runs until Stop, or until it ends by itself. On error no
// process is left, and the error contains the end of Envoy's log.
func (b Binary) Start(ctx context.Context, o Options) (*Process, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("not ready after %v", startLimit))
	defer cancel()
	cmd, err := b.command(o)
	if err != nil {
		return nil, err
	}
	log := &logTail{next: o.Log}
	cmd.Stdout, cmd.Stderr = log, log
	child, err := proc.Start(cmd)
	if err != nil {
		return nil, err
	}
	p := &Process{child: child}
	if err := p.waitReady(ctx, filepath.Join(o.Dir, adminFile)); err != nil {
		stopErr := child.Stop(startGrace)
		return nil, errors.Join(fmt.Errorf("starting Envoy %s: %w%s", b.Version, err, outputSuffix(log.bytes())), stopErr)
	}
	return p, nil
}

func (b Binary) command(o Options) (*exec.Cmd, error) {
	if o.Dir == "" {
		return nil, errors.New("starting Envoy: Dir is required")
	}
	config, admin := filepath.Join(o.Dir, bootstrapFile), filepath.Join(o.Dir, adminFile)
	// A file left by an earlier Envoy would be read as this one's address.
	if err := os.Remove(admin); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("removing an old admin address: %w", err)
	}
	if err := regular.Write(config, o.Bootstrap, 0o600); err != nil {
		return nil, fmt.Errorf("writing the bootstrap: %w", err)
	}
	level := o.LogLevel
	if level == "" {
		level = "warning"
	}
	// Hot restart does not work with unix-socket listeners. With it, Envoy would also
	// leave a file in /dev/shm, through which Envoys of two users exclude each other.
	args := []string{"-c", config, "--admin-address-path", admin, "--disable-hot-restart", "--log-level", level}
	if o.Concurrency > 0 {
		args = append(args, "--concurrency", strconv.Itoa(o.Concurrency))
	}
	return exec.Command(b.Path, args...), nil //nolint:gosec,noctx // the operator's own binary; it outlives the start's context.
}

// EdgeAddr returns the host:port that clients connect to, empty when the bootstrap has
// no listener named edge.
func (p *Process) EdgeAddr() string { return p.edge }

// Admin returns the URL of the admin interface: http://host:port or unix:///path.
func (p *Process) Admin() string { return p.admin }

// Pid returns the process id.
func (p *Process) Pid() int { return p.child.Pid() }

// Done returns a channel that is closed when Envoy has ended.
func (p *Process) Done() <-chan struct{} { return p.child.Done() }

// Err returns how Envoy ended: nil for exit status 0. It is valid once Done is closed.
func (p *Process) Err() error { return p.child.Err() }

// Stop asks Envoy to end, kills it after grace, and returns when it is gone.
func (p *Process) Stop(grace time.Duration) error { return p.child.Stop(grace) }
