// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
)

// startSystems starts all systems before any is measured. A system that waits for its
// turn uses no significant CPU time.
func startSystems(ctx context.Context, b *testbed, o speedOptions) ([]system, error) {
	backend, err := b.startBackend(ctx)
	if err != nil {
		return nil, err
	}
	start := map[string]func() (system, error){
		systemBackend:  func() (system, error) { return system{name: systemBackend, addr: backend}, nil },
		systemEnvoy:    func() (system, error) { return startAlone(ctx, b, backend) },
		systemBare:     func() (system, error) { return startFloor(ctx, b, systemBare, backend) },
		systemFloor:    func() (system, error) { return startFloor(ctx, b, systemFloor, backend) },
		systemBefore:   func() (system, error) { return startWarmHoldgate(ctx, b, systemBefore, backend, o.before) },
		systemHoldgate: func() (system, error) { return startWarmHoldgate(ctx, b, systemHoldgate, backend, o.holdgate) },
		systemPoliced:  func() (system, error) { return startPoliced(ctx, b, backend, o.holdgate) },
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

func startAlone(ctx context.Context, b *testbed, backend string) (system, error) {
	process, err := startEnvoy(ctx, b, systemEnvoy, b.path("unused.sock"), func(boot *bootstrapv3.Bootstrap) error {
		return plain(boot, backend)
	})
	if err != nil {
		return system{}, err
	}
	return system{name: systemEnvoy, addr: process.EdgeAddr(), pids: []int{process.Pid()}}, nil
}

func startFloor(ctx context.Context, b *testbed, name, backend string) (system, error) {
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

// startWarmHoldgate starts Holdgate with an agent for the backend: every request is
// served natively.
func startWarmHoldgate(ctx context.Context, b *testbed, name, backend, binary string, more ...string) (system, error) {
	h, err := startHoldgate(ctx, b, name, binary, more...)
	if err != nil {
		return system{}, err
	}
	process, err := startEnvoy(ctx, b, name, b.path(name+"/extproc.sock"))
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
	if err := a.waitWelcome(ctx); err != nil {
		return system{}, err
	}
	return system{name: name, addr: process.EdgeAddr(), pids: []int{process.Pid(), h.pid}}, nil
}

// The policy of startPoliced, applied to every request: a key with quotas and a share,
// an admission gate, and a step with a label selector.
const (
	policedKeys = "keys: [{id: bench, tenant: bench, key_hash: %x, max_occupancy_share: 0.9, models: [" + benchModel + `],
  quota: {requests_per_minute: 100000000, per_model: {` + benchModel + `: {requests_per_minute_per_replica: 100000000}}}}]
`
	policedModels = "models: {" + benchModel + `: {max_inflight: 100000, admit_budget_tokens: 10000000000,
  steps: [{name: first, match: {engine: custom}, max_tries: 2}, {name: any}]}}
`
)

// startPoliced starts Holdgate with keys, quotas and the admission gate.
func startPoliced(ctx context.Context, b *testbed, backend, binary string) (system, error) {
	keys, models := b.path("keys.yaml"), b.path("policy.yaml")
	if err := os.WriteFile(keys, fmt.Appendf(nil, policedKeys, sha256.Sum256([]byte(benchKey))), 0o600); err != nil {
		return system{}, fmt.Errorf("writing the keys: %w", err)
	}
	if err := os.WriteFile(models, []byte(policedModels), 0o600); err != nil {
		return system{}, fmt.Errorf("writing the policy: %w", err)
	}
	return startWarmHoldgate(ctx, b, systemPoliced, backend, binary, "--auth-file", keys, "--policy-file", models)
}
