// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/internal/policy"
	"github.com/holdgate/holdgate/internal/target"
)

// Capacity gives access to the replicas of a registry by the policies and the admission
// gate. It is the hold machine's Slots.
type Capacity struct {
	registry *agentreg.Registry
	policies func() *policy.Policy
	gate     gate
}

// NewCapacity returns the capacity of a registry. policies returns the current policy.
func NewCapacity(registry *agentreg.Registry, policies func() *policy.Policy) *Capacity {
	return &Capacity{registry: registry, policies: policies}
}

// noPolicy is the policy of a model that the policy file does not name.
var noPolicy = &policy.Model{}

func (c *Capacity) policyOf(model string) *policy.Model {
	if p := c.policies().Model(model); p != nil {
		return p
	}
	return noPolicy
}

// Load has the reserved requests and tokens of a model, and their limits; 0: no limit.
type Load struct {
	Model                  string
	Requests, RequestLimit int64
	Tokens, TokenLimit     int64
}

// Loads returns the loads of the models with limits.
func (c *Capacity) Loads() (list []Load) {
	for _, model := range c.policies().Models() {
		l := limitsOf(c.policyOf(model))
		if l == (limits{}) {
			continue
		}
		all := l.times(c.replicas(model))
		load := Load{Model: model, RequestLimit: all.requests, TokenLimit: all.budget()}
		load.Requests, load.Tokens = c.gate.reserved(model)
		list = append(list, load)
	}
	return list
}

// replicas returns the number of replicas of a model in routing, of the kind with the most.
func (c *Capacity) replicas(model string) (most int) {
	for _, kind := range target.Kinds {
		most = max(most, c.registry.Serving(target.Target{Model: model, Kind: kind}))
	}
	return most
}

// Serving is part of holdstate.Slots.
func (c *Capacity) Serving(t target.Target) bool { return c.registry.Serving(t) > 0 }
