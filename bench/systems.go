// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
)

// startSystems starts what is to be measured, all of it before anything is.
// A system that waits for its turn uses no CPU worth naming.
func startSystems(ctx context.Context, b *bed, o speedOptions) ([]system, error) {
	backend, err := b.startBackend(ctx)
	if err != nil {
		return nil, err
	}
	start := map[string]func() (system, error){
		systemBackend:  func() (system, error) { return system{name: systemBackend, addr: backend}, nil },
		systemEnvoy:    func() (system, error) { return startAlone(ctx, b, backend) },
		systemBare:     func() (system, error) { return startFloor(ctx, b, systemBare, backend) },
		systemFloor:    func() (system, error) { return startFloor(ctx, b, systemFloor, backend) },
		systemHoldgate: func() (system, error) { return startWarmHoldgate(ctx, b, backend, o.holdgate) },
	}
	var systems []system
	for _, name := range o.systems {
		s, err := start[name]()
		if err != nil {
			return nil, fmt.Errorf("starting %s: %w", name, err)
		}
		systems = append(systems, s)
	}
	return systems, nil
}

func startAlone(ctx context.Context, b *bed, backend string) (system, error) {
	process, err := startEnvoy(ctx, b, systemEnvoy, b.path("unused.sock"), func(boot *bootstrapv3.Bootstrap) error {
		return plain(boot, backend)
	})
	if err != nil {
		return system{}, err
	}
	return system{name: systemEnvoy, addr: process.EdgeAddr(), pids: []int{process.Pid()}}, nil
}

func startFloor(ctx context.Context, b *bed, name, backend string) (system, error) {
	socket := b.path(name + ".sock")
	server, err := b.startSelf(name, "floor", "-socket", socket, "-destination", backend)
	if err != nil {
		return system{}, err
	}
	if err := waitFile(ctx, server, socket); err != nil {
		return system{}, err
	}
	var changes []change
	if name == systemBare {
		changes = append(changes, withoutAccessLog)
	}
	process, err := startEnvoy(ctx, b, name, socket, changes...)
	if err != nil {
		return system{}, err
	}
	return system{name: name, addr: process.EdgeAddr(), pids: []int{process.Pid(), server.Pid()}}, nil
}

// startWarmHoldgate is Holdgate with an agent for the backend: every request is
// served natively.
func startWarmHoldgate(ctx context.Context, b *bed, backend, binary string) (system, error) {
	h, err := startHoldgate(ctx, b, binary)
	if err != nil {
		return system{}, err
	}
	process, err := startEnvoy(ctx, b, systemHoldgate, b.path("extproc.sock"))
	if err != nil {
		return system{}, err
	}
	a, err := dialAgent(ctx, h.agents)
	if err != nil {
		return system{}, err
	}
	b.stops = append(b.stops, a.leave)
	if _, err := a.join(backend); err != nil {
		return system{}, err
	}
	if err := a.welcomed(ctx); err != nil {
		return system{}, err
	}
	return system{name: systemHoldgate, addr: process.EdgeAddr(), pids: []int{process.Pid(), h.pid}}, nil
}
