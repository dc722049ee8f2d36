// SPDX-License-Identifier: Apache-2.0

// Package up runs everything that a machine with one GPU needs: Envoy, holdgate serve and
// an agent for each model, whose engine starts with the first request.
//
// serve and Envoy are child processes, the agents are goroutines. When one of them ends by
// itself, the others are stopped and the reason is returned.
package up

import (
	"context"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"
	"gopkg.in/natefinch/lumberjack.v2"

	"github.com/holdgate/holdgate/agentreg/agent"
	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/internal/proc"
	"github.com/holdgate/holdgate/internal/regular"
)

// Options are the settings of a run.
type Options struct {
	File *File
	Dir  string // directory of sockets and engine logs; empty: a temporary one
	// Program is the name by which this program was called.
	Program string
	// Hangups receives each SIGHUP. A SIGHUP ends the run, unless the file has flags of
	// holdgate serve or backends: then it is forwarded to serve, which reloads its files.
	Hangups <-chan os.Signal
	Out     io.Writer
	ErrOut  io.Writer
	Log     zerolog.Logger
	// EdgeCertFile and EdgeKeyFile are the certificate for clients and its key; both are
	// empty for plain text.
	EdgeCertFile, EdgeKeyFile string
}

// run is one run of up.
type run struct {
	Options
	serve *proc.Process
	envoy *envoy.Process

	stopping    atomic.Bool
	enginePorts agent.Ports
	admin       string // the address of serve's admin API
	ports       struct {
		Admin string `json:"admin"`
	}
}

// An engine's log is rotated at engineLogMiB, and engineLogs old files are kept.
const (
	engineLogMiB = 50
	engineLogs   = 2
)

const (
	startLimit = 15 * time.Second
	stopGrace  = 10 * time.Second
	// drainTimeout is serve's --drain-timeout unless the file sets it. No other router can
	// serve what is held, but nobody waits minutes for the end of a program.
	drainTimeout = 30 * time.Second
	// drainGrace is longer.
	drainGrace = 40 * time.Second
)

// Run starts everything and waits until ctx ends, or returns an error when a part ends by
// itself. Before it returns, it stops everything that it started.
func Run(ctx context.Context, o Options) error {
	r := &run{Options: o}
	ctx, end := context.WithCancel(ctx)
	defer end()
	if r.Dir == "" {
		dir, err := os.MkdirTemp("", "holdgate-")
		if err != nil {
			return fmt.Errorf("making a directory for sockets: %w", err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
		r.Dir = dir
	}
	dir, err := filepath.Abs(r.Dir)
	if err != nil {
		return fmt.Errorf("--dir: %w", err)
	}
	r.Dir = dir
	unlock, err := lock(r.Dir)
	if err != nil {
		return fmt.Errorf("--dir: %w", err)
	}
	defer unlock()
	defer r.stopEnvoy()
	defer r.stopServe()
	err = r.start(ctx)
	switch {
	case ctx.Err() != nil:
		r.Log.Info().Msg("interrupted during the start, stopping")
		return nil
	case err != nil:
		return err
	}
	go r.handleHangups(ctx, end)
	return r.runAgents(ctx)
}

// start starts holdgate serve and Envoy.
func (r *run) start(ctx context.Context) error {
	bin, err := envoy.Find(ctx)
	if err != nil {
		return err
	}
	if err := r.checkSockets(); err != nil {
		return err
	}
	if err := checkFree(ctx, "listen", r.File.Listen, "change listen in the file, or give --listen"); err != nil {
		return err
	}
	if r.File.Admin != "" && !strings.HasPrefix(r.File.Admin, "unix:") {
		if err := checkFree(ctx, "admin", r.File.Admin, "change or remove admin in the file"); err != nil {
			return err
		}
	}
	r.admin = adminAddress(ctx, r.File.Admin)
	if err := r.startServe(ctx); err != nil {
		return err
	}
	return r.startEnvoy(ctx, bin)
}

// handleHangups handles SIGHUPs until ctx ends.
func (r *run) handleHangups(ctx context.Context, end func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.Hangups:
		}
		if len(r.File.Serve) == 0 && len(r.File.backends) == 0 {
			end()
			return
		}
		if err := r.serve.Signal(syscall.SIGHUP); err != nil {
			r.Log.Error().Err(err).Msg("sending SIGHUP to holdgate serve")
		}
	}
}

// path returns the path of a file in the run's directory.
func (r *run) path(name string) string { return filepath.Join(r.Dir, name) }

const agentsSocket = "agents.sock"

func (r *run) agentsAddress() string { return "unix://" + r.path(agentsSocket) }

// startServe starts holdgate serve with the map of the models, and waits until it listens.
func (r *run) startServe(ctx context.Context) error {
	text, err := r.File.siteMap()
	if err != nil {
		return err
	}
	if err := regular.Write(r.path("map.json"), text, 0o600); err != nil {
		return fmt.Errorf("writing the sibling map: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	ports := r.path("ports.json")
	_ = os.Remove(ports) // of an earlier run in the same --dir
	args := []string{
		"serve", "--site-id", site, "--log-format", "text", "--log-level", r.Log.GetLevel().String(),
		"--extproc-listen", "unix://" + r.path(envoy.ExtProcSocket), "--relay", "unix://" + r.path(envoy.RelaySocket),
		"--agents-listen", r.agentsAddress(), "--admin-listen", r.admin, "--envoy-admin", "unix://" + r.path(envoy.AdminSocket),
		"--map-file", r.path("map.json"), "--ports-file", ports, "--group-grace", "0s",
		"--drain-timeout", drainTimeout.String(),
	}
	for name, value := range r.File.Serve {
		args = append(args, "--"+name+"="+value)
	}
	if len(r.File.backends) > 0 {
		if err := regular.Write(r.path("serve.yaml"), r.File.backends, 0o600); err != nil {
			return fmt.Errorf("writing the backends: %w", err)
		}
		args = append(args, "--config", r.path("serve.yaml"))
	}
	cmd := exec.Command(self, args...) //nolint:noctx,gosec // this program itself; proc.Stop ends it in order
	cmd.Stdout, cmd.Stderr = r.Out, r.ErrOut
	if r.serve, err = proc.Start(cmd); err != nil {
		return err
	}
	return r.waitForPorts(ctx, ports)
}

func (r *run) waitForPorts(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		text, err := os.ReadFile(path) //nolint:gosec // our own file
		if err == nil {
			if err := json.Unmarshal(text, &r.ports); err != nil {
				return fmt.Errorf("reading %s: %w", path, err)
			}
			return nil
		}
		select {
		case <-tick.C:
		case <-r.serve.Done():
			return fmt.Errorf("holdgate serve failed to start: %s", proc.Describe(r.serve.Err()))
		case <-ctx.Done():
			return fmt.Errorf("holdgate serve did not become ready in %v", startLimit)
		}
	}
}

func (r *run) startEnvoy(ctx context.Context, bin envoy.Binary) error {
	text, err := r.bootstrap()
	if err != nil {
		return fmt.Errorf("rendering Envoy's bootstrap: %w", err)
	}
	log, err := regular.Create(r.path("envoy.log"))
	if err != nil {
		return fmt.Errorf("opening Envoy's log: %w", err)
	}
	defer func() { _ = log.Close() }()
	r.envoy, err = bin.Start(ctx, envoy.Options{Bootstrap: text, Dir: r.Dir, Log: log, LogLevel: "error"})
	return err
}

// bootstrap returns Envoy's bootstrap, and writes the files in which Envoy finds the paths of
// its certificates.
func (r *run) bootstrap() ([]byte, error) {
	c := envoy.Config{EdgeListen: r.File.Listen, LanesDir: r.Dir, SecretsDir: r.Dir, EdgeCertFile: r.EdgeCertFile, EdgeKeyFile: r.EdgeKeyFile, BackendCAs: r.File.backendCAs}
	b, err := envoy.Render(c)
	if err != nil {
		return nil, err
	}
	files, err := envoy.Secrets(c)
	if err != nil {
		return nil, err
	}
	for name, text := range files {
		if err := regular.Write(r.path(name), text, 0o600); err != nil {
			return nil, err
		}
	}
	return envoy.YAML(b)
}

// runAgents runs the agents until ctx ends or a part ends by itself.
func (r *run) runAgents(ctx context.Context) error {
	parent := ctx
	group, ctx := errgroup.WithContext(ctx)
	// Requests that are being answered need their engines until serve has drained.
	agents, stopAgents := context.WithCancel(context.WithoutCancel(ctx))
	defer stopAgents()
	for i := range r.File.Models {
		m := &r.File.Models[i]
		group.Go(func() error {
			if err := r.runAgent(agents, m); err != nil {
				return fmt.Errorf("the agent of %s ended: %w", m.Name, err)
			}
			return nil
		})
	}
	group.Go(func() error {
		defer stopAgents()
		select {
		case <-ctx.Done():
			r.stopping.Store(true)
			r.Log.Info().Msg("waiting for running answers before stopping; a second Ctrl-C ends at once")
			r.stopServe()
			r.waitForAnswers(context.WithoutCancel(ctx))
			return ctx.Err()
		case <-r.serve.Done():
			return fmt.Errorf("holdgate serve ended by itself: %s; stopping the rest", proc.Describe(r.serve.Err()))
		case <-r.envoy.Done():
			return fmt.Errorf("envoy ended by itself: %s; stopping the rest", proc.Describe(r.envoy.Err()))
		}
	})
	r.announce()
	err := group.Wait()
	if parent.Err() != nil && (err == nil || errors.Is(err, context.Canceled)) {
		return nil
	}
	return err
}

func (r *run) runAgent(ctx context.Context, m *Model) error {
	path := r.path(logName(m.Name))
	first, err := regular.Append(path) // fails unless the path is a regular file or new
	if err != nil {
		return fmt.Errorf("opening the engine's log: %w", err)
	}
	_ = first.Close()
	out := &lumberjack.Logger{Filename: path, MaxSize: engineLogMiB, MaxBackups: engineLogs}
	defer func() { _ = out.Close() }()
	c := m.Config
	c.Routers, c.ID, c.Models = []string{r.agentsAddress()}, m.Name, []string{m.Name}
	c.Exec, c.Ports, c.StopGrace = m.command(), &r.enginePorts, stopGrace
	c.Stdout, c.Stderr, c.Log = out, out, r.agentLog()
	return agent.Run(ctx, c)
}

// agentLog returns an agent's log, which has only warnings and errors. While the run stops
// warnings are dropped, because the agents lose their router then.
func (r *run) agentLog() zerolog.Logger {
	return r.Log.Level(zerolog.WarnLevel).Hook(zerolog.HookFunc(func(e *zerolog.Event, level zerolog.Level, _ string) {
		if level == zerolog.WarnLevel && r.stopping.Load() {
			e.Discard()
		}
	}))
}

// logName returns the name of an engine's log file. It is cut so that it is not too long for
// a file system; models whose names differ only after that share a file.
func logName(model string) string { return fmt.Sprintf("%.200s.log", url.PathEscape(model)) }

func (r *run) stopServe() {
	if r.serve != nil {
		if err := r.serve.Stop(drainGrace); err != nil {
			r.Log.Error().Err(err).Msg("stopping holdgate serve")
		}
	}
}

// waitForAnswers waits until Envoy has no active request, at most drainGrace.
func (r *run) waitForAnswers(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, drainGrace)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		active, err := r.envoy.ActiveRequests(ctx)
		if err != nil || active == 0 {
			return // an Envoy that does not answer has no requests
		}
		select {
		case <-tick.C:
		case <-r.envoy.Done():
			return
		}
	}
}

func (r *run) stopEnvoy() {
	if r.envoy != nil {
		if err := r.envoy.Stop(stopGrace); err != nil {
			r.Log.Error().Err(err).Msg("stopping Envoy")
		}
	}
}
