// SPDX-License-Identifier: Apache-2.0

// Package valkeytest gives tests a server for package shared: a real Valkey if HOLDGATE_VALKEY
// names the program, else one in memory.
package valkeytest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/holdgate/holdgate/internal/polltest"
	"github.com/holdgate/holdgate/internal/shared"
)

// VerifyNoLeaks runs the tests and fails if goroutines are left, for TestMain. The library's
// client for a cluster, as which the server in memory looks, leaves one that ends by itself.
func VerifyNoLeaks(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/valkey-io/valkey-go.(*call).DelayDo.func1"))
}

// Server is a server that a test can stop and start again.
type Server struct {
	t       *testing.T
	address string
	program *exec.Cmd            // the real one
	options []string             // of the real one
	config  string               // the file of the real one, if it has one
	memory  *miniredis.Miniredis // the one in memory
}

// Start starts a server that ends with the test.
func Start(t *testing.T) *Server {
	t.Helper()
	if os.Getenv(program) != "" {
		return StartReal(t)
	}
	return StartMemory(t)
}

// StartMemory starts the server in memory, that ends with the test.
func StartMemory(t *testing.T) *Server {
	t.Helper()
	s := &Server{t: t, memory: miniredis.RunT(t)}
	s.address = s.memory.Addr()
	return s
}

// StartReal starts a real server with further options, that ends with the test. Without one the
// test is skipped.
func StartReal(t *testing.T, options ...string) *Server {
	t.Helper()
	if os.Getenv(program) == "" {
		t.Skip("needs " + program)
	}
	s := &Server{t: t, address: FreeAddress(t), options: options}
	s.run()
	t.Cleanup(s.Stop)
	return s
}

// StartSentinel starts a real sentinel, which has replicas take the place of a primary within
// about a second. It ends with the test.
func StartSentinel(t *testing.T, primary *Server, name string) *Server {
	t.Helper()
	s := &Server{t: t, address: FreeAddress(t), options: []string{"--sentinel"}}
	s.config = filepath.Join(t.TempDir(), "sentinel.conf")
	host, port, err := net.SplitHostPort(primary.address)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(s.config, fmt.Appendf(nil, "sentinel monitor %[1]s %[2]s %[3]s 1\n"+
		"sentinel down-after-milliseconds %[1]s 300\nsentinel failover-timeout %[1]s 2000\n", name, host, port), 0o600))
	s.run()
	t.Cleanup(s.Stop)
	return s
}

// program is the environment variable that names the real server.
const program = "HOLDGATE_VALKEY"

// Address returns host:port.
func (s *Server) Address() string { return s.address }

// URL returns the address for --shared.
func (s *Server) URL() string { return "valkey://" + s.address }

// Stop ends the server as a crash does.
func (s *Server) Stop() {
	if s.memory != nil {
		s.memory.Close()
		return
	}
	if s.program != nil {
		_ = s.program.Process.Kill()
		_ = s.program.Wait()
		s.program = nil
	}
}

// Restart starts the server again after Stop, at the same address. The real one is empty then.
func (s *Server) Restart() {
	s.t.Helper()
	if s.memory != nil {
		require.NoError(s.t, s.memory.Restart())
		return
	}
	s.run()
}

// Empty removes everything from the server in memory.
func (s *Server) Empty() { s.memory.FlushAll() }

// SetTime sets the clock of the server in memory, d after the time that was set before.
func (s *Server) SetTime(now time.Time, d time.Duration) {
	s.memory.SetTime(now)
	s.memory.FastForward(d)
}

// Pause makes the server silent without closing its connections, until the function that it
// returns is called. The one in memory cannot do that: the test is skipped.
func (s *Server) Pause() (resume func()) {
	s.t.Helper()
	if s.program == nil {
		s.t.Skip("needs " + program)
	}
	require.NoError(s.t, s.program.Process.Signal(syscall.SIGSTOP))
	process := s.program.Process
	s.t.Cleanup(func() { _ = process.Signal(syscall.SIGCONT) })
	return func() { require.NoError(s.t, process.Signal(syscall.SIGCONT)) }
}

// run runs the real server and waits until it answers.
func (s *Server) run() {
	s.t.Helper()
	_, port, err := net.SplitHostPort(s.address)
	require.NoError(s.t, err)
	var options []string
	if s.config != "" {
		options = append(options, s.config)
	}
	options = append(options, "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", s.t.TempDir())
	options = append(options, s.options...)
	s.program = exec.CommandContext(s.t.Context(), os.Getenv(program), options...) //nolint:gosec // named by whoever runs the tests
	s.program.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	s.program.Cancel = func() error { return nil } // Stop ends it
	require.NoError(s.t, s.program.Start())
	polltest.Until(s.t, "the server listens", func() bool {
		conn, err := net.DialTimeout("tcp", s.address, time.Second) //nolint:noctx // it has its own limit
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

// FreeAddress returns an address of this machine that is free and stays so while its server is
// restarted: the kernel never gives its port to a client.
func FreeAddress(t *testing.T) string {
	t.Helper()
	for range 100 {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(20_000+rand.IntN(10_000))) //nolint:gosec // not a secret
		if l, err := net.Listen("tcp", address); err == nil {                            //nolint:noctx // it returns at once
			_ = l.Close()
			return address
		}
	}
	require.Fail(t, "no port is free")
	return ""
}

// Router returns a client that runs until the test ends, after set has set its callbacks; nil
// for none. It is up.
func (s *Server) Router(set func(*shared.Client)) *shared.Client {
	s.t.Helper()
	return s.RouterAt(shared.Address{URL: s.URL()}, set)
}

// RouterAt is Router with an address.
func (s *Server) RouterAt(address shared.Address, set func(*shared.Client)) *shared.Client {
	s.t.Helper()
	c, err := shared.New(shared.Options{
		Address: address, Registerer: prometheus.NewRegistry(), Prefix: "hivenet_", Log: zerolog.Nop(),
	})
	require.NoError(s.t, err)
	if set != nil {
		set(c)
	}
	done := make(chan struct{})
	ctx := s.t.Context()
	go func() {
		defer close(done)
		c.Run(ctx)
	}()
	s.t.Cleanup(func() { <-done })
	c.AwaitUp(ctx)
	return c
}
