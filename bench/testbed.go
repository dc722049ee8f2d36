// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/holdgate/holdgate/internal/proc"
)

const (
	startTimeout = 20 * time.Second
	stopGrace    = 3 * time.Second
	pollInterval = 5 * time.Millisecond
)

// testbed is a temporary directory and the processes that use it.
type testbed struct {
	dir         string
	concurrency int
	logs        []string
	stops       []func() error
}

// newTestbed returns a testbed without processes. The directory's name is short: a unix
// socket's path has 108 bytes at most.
func newTestbed(concurrency int) (*testbed, error) {
	dir, err := os.MkdirTemp("", "hgbench")
	if err != nil {
		return nil, fmt.Errorf("making a directory: %w", err)
	}
	return &testbed{dir: dir, concurrency: concurrency}, nil
}

// close ends the processes, the last started first, and removes the directory. If cause
// is not nil, the ends of the logs are added to it.
func (b *testbed) close(cause error) error {
	errs := []error{cause}
	for _, stop := range slices.Backward(b.stops) {
		errs = append(errs, stop())
	}
	if cause != nil && !errors.Is(cause, context.Canceled) {
		errs = append(errs, b.logEnds())
	}
	errs = append(errs, os.RemoveAll(b.dir))
	return errors.Join(errs...)
}

func (b *testbed) logEnds() error {
	var errs []error
	for _, path := range b.logs {
		content, err := os.ReadFile(path)
		if err != nil || len(content) == 0 {
			continue
		}
		lines := strings.Split(strings.TrimSpace(string(content)), "\n")
		lines = lines[max(0, len(lines)-5):]
		errs = append(errs, fmt.Errorf("end of %s:\n%s", strings.TrimPrefix(path, b.dir+"/"), strings.Join(lines, "\n")))
	}
	return errors.Join(errs...)
}

// path returns the path of a file in the directory.
func (b *testbed) path(name string) string { return filepath.Join(b.dir, name) }

// logFile opens the log of a process.
func (b *testbed) logFile(name string) (*os.File, error) {
	path := b.path(name + ".log")
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the log of %s: %w", name, err)
	}
	b.logs = append(b.logs, path)
	b.stops = append(b.stops, file.Close)
	return file, nil
}

// start runs a program until close.
func (b *testbed) start(name, program string, args ...string) (*proc.Process, error) {
	log, err := b.logFile(name)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	process, err := proc.Start(cmd)
	if err != nil {
		return nil, err
	}
	b.stops = append(b.stops, func() error { return process.Stop(stopGrace) })
	return process, nil
}

// startSelf runs this program with other arguments.
func (b *testbed) startSelf(name string, args ...string) (*proc.Process, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	return b.start(name, program, args...)
}

// startBackend starts the backend and returns its address.
func (b *testbed) startBackend(ctx context.Context) (string, error) {
	file := b.path("backend.address")
	process, err := b.startSelf("backend", "backend", "-address-file", file)
	if err != nil {
		return "", err
	}
	if err := waitFile(ctx, process, file); err != nil {
		return "", err
	}
	address, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("reading the backend's address: %w", err)
	}
	return string(address), nil
}

// waitFile returns when the file, which may be a socket, exists.
func waitFile(ctx context.Context, process *proc.Process, path string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		_, err := os.Stat(path)
		if err == nil {
			return nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("waiting for %s: %w", path, err)
		}
		select {
		case <-ticker.C:
		case <-process.Done():
			return fmt.Errorf("waiting for %s: process ended: %s", filepath.Base(path), proc.Describe(process.Err()))
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", filepath.Base(path), ctx.Err())
		}
	}
}
