// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"

	"github.com/holdgate/holdgate/envoy"
)

// change edits a rendered bootstrap.
type change func(*bootstrapv3.Bootstrap) error

// startEnvoy runs Holdgate's own bootstrap with the given changes. extProc is the
// address of its external processor.
func startEnvoy(ctx context.Context, b *testbed, name, extProc string, changes ...change) (*envoy.Process, error) {
	binary, err := envoy.Find(ctx)
	if err != nil {
		return nil, err
	}
	dir := b.path(name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the directory of %s: %w", name, err)
	}
	bootstrap, err := envoy.Render(envoy.Config{
		EdgeListen: "127.0.0.1:0", AdminListen: "127.0.0.1:0", ExtProc: "unix://" + extProc, LanesDir: dir,
	})
	if err != nil {
		return nil, err
	}
	for _, change := range changes {
		if err := change(bootstrap); err != nil {
			return nil, fmt.Errorf("changing the bootstrap of %s: %w", name, err)
		}
	}
	text, err := envoy.YAML(bootstrap)
	if err != nil {
		return nil, err
	}
	log, err := b.logFile(filepath.Join(name, "envoy"))
	if err != nil {
		return nil, err
	}
	process, err := binary.Start(ctx, envoy.Options{Bootstrap: text, Dir: dir, Concurrency: b.concurrency, Log: log, LogLevel: "error"})
	if err != nil {
		return nil, err
	}
	b.stops = append(b.stops, func() error { return process.Stop(stopGrace) })
	return process, nil
}
