// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json/v2"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/internal/admin/client"
	"github.com/holdgate/holdgate/internal/proc"
)

const stopGrace = 10 * time.Second

// site is an Envoy with a holdgate serve behind it.
type site struct {
	id, dir  string
	url      string // where clients connect
	adminURL string
	admin    *client.Client
}

func (s *site) agents() string { return "unix://" + filepath.Join(s.dir, "agents.sock") }

func (f *fleet) startSite(ctx context.Context, bin envoy.Binary, id, host string) (*site, error) {
	s := &site{id: id, dir: filepath.Join(f.dir, id)}
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		return nil, fmt.Errorf("making its directory: %w", err)
	}
	ports := filepath.Join(s.dir, "ports.json")
	_, err := f.launch("holdgate serve of site "+id, "serve", "--site-id", id,
		"--extproc-listen", "unix://"+filepath.Join(s.dir, envoy.ExtProcSocket),
		"--relay", "unix://"+filepath.Join(s.dir, envoy.RelaySocket),
		"--agents-listen", s.agents(), "--admin-listen", "127.0.0.1:0", "--ports-file", ports,
		"--auth-file", filepath.Join(f.dir, "keys.yaml"), "--hop-secret-file", filepath.Join(f.dir, "hop-secret"),
		"--log-format", "text", "--log-level", "warn")
	if err != nil {
		return nil, err
	}
	if err := f.until(ctx, "holdgate serve listens", func() bool {
		_, err := os.Stat(ports)
		return err == nil
	}); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(ports)
	if err != nil {
		return nil, fmt.Errorf("reading its addresses: %w", err)
	}
	var at struct {
		Admin string `json:"admin"`
	}
	if err := json.Unmarshal(text, &at); err != nil {
		return nil, fmt.Errorf("reading its addresses: %w", err)
	}
	s.adminURL = "http://" + at.Admin
	if s.admin, err = client.New(s.adminURL, ""); err != nil {
		return nil, err
	}
	return s, f.startEnvoy(ctx, bin, s, host)
}

func (f *fleet) startEnvoy(ctx context.Context, bin envoy.Binary, s *site, host string) error {
	b, err := envoy.Render(envoy.Config{EdgeListen: "127.0.0.1:0", LanesDir: s.dir})
	if err != nil {
		return fmt.Errorf("rendering Envoy's bootstrap: %w", err)
	}
	text, err := envoy.YAML(b)
	if err != nil {
		return fmt.Errorf("rendering Envoy's bootstrap: %w", err)
	}
	p, err := bin.Start(ctx, envoy.Options{Bootstrap: text, Dir: s.dir, Concurrency: 1, Log: os.Stderr, LogLevel: "error"})
	if err != nil {
		return err
	}
	f.parts = append(f.parts, part{"Envoy of site " + s.id, p.Done(), func() error { return p.Stop(stopGrace) }})
	_, port, err := net.SplitHostPort(p.EdgeAddr())
	if err != nil {
		return fmt.Errorf("reading Envoy's address: %w", err)
	}
	s.url = "http://" + net.JoinHostPort(host, port)
	return nil
}

// launch starts the program with arguments and returns its process id.
func (f *fleet) launch(name string, args ...string) (pid int, err error) {
	cmd := exec.Command(f.holdgate, args...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	p, err := proc.Start(cmd)
	if err != nil {
		return 0, fmt.Errorf("%w; `make build` creates it", err)
	}
	f.parts = append(f.parts, part{name, p.Done(), func() error { return p.Stop(stopGrace) }})
	return p.Pid(), nil
}

// startEngine starts an engine, and the agent that registers it at a site.
func (f *fleet) startEngine(ctx context.Context, s *site) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("starting the engine: %w", err)
	}
	server := &http.Server{Handler: engine(s.id), ReadHeaderTimeout: time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	f.parts = append(f.parts, part{"the engine", done, server.Close})
	f.agent, err = f.launch(agentName, "agent", "--router", s.agents(), "--backend-url", "http://"+listener.Addr().String(),
		"--model", model, "--capability", "llm", "--capacity", "4", "--log-level", "warn")
	return err
}

// engine answers every chat request with a greeting from its site.
func engine(id string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return // the caller has disconnected
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"object":"chat.completion","model":%q,"choices":[{"index":0,"finish_reason":"stop","message":`+
			`{"role":"assistant","content":%q}}]}`+"\n", model, greeting(id))
	})
	return mux
}

func greeting(id string) string { return "hello from site " + id }

// until checks every 20 ms whether ok returns true.
func (f *fleet) until(ctx context.Context, what string, ok func() bool) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if err := f.ended(); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %w", what, ctx.Err())
		}
	}
	return nil
}
