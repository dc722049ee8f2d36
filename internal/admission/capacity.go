// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/internal/policy"
	"github.com/holdgate/holdgate/internal/target"
)

// Capacity is what the registry's replicas and the policies give to requests. It is the
// hold machine's Slots, and its Attempts are the claims.
type Capacity struct {
	registry *agentreg.Registry
	policies func() *policy.Policy
	gate     Gate
}

// NewCapacity makes the capacity of a registry's replicas under the policies that
// hold at each moment.
func NewCapacity(registry *agentreg.Registry, policies func() *policy.Policy) *Capacity {
	return &Capacity{registry: registry, policies: policies}
}

// noPolicy is of a model that the policy file does not name.
var noPolicy = &policy.Model{}

// Of is the policy of a model.
func (c *Capacity) Of(model string) *policy.Model {
	if p := c.policies().Model(model); p != nil {
		return p
	}
	return noPolicy
}

// limits are the gate's limits of a model.
func limits(p *policy.Model) Limits {
	return Limits{Inflight: p.MaxInflight, Tokens: p.AdmitBudgetTokens}
}

// Load is what a model has in hand and what it may have; 0 is no limit.
type Load struct {
	Model                  string
	Requests, RequestLimit int64
	Tokens, TokenLimit     int64
}

// Loads lists the models with limits.
func (c *Capacity) Loads() (list []Load) {
	for _, model := range c.policies().Models() {
		limits := limits(c.Of(model))
		if limits == (Limits{}) {
			continue
		}
		l := Load{Model: model}
		l.Requests, l.Tokens = c.gate.InHand(model)
		l.RequestLimit, l.TokenLimit = limits.Budget(c.replicas(model))
		list = append(list, l)
	}
	return list
}

// replicas is how many replicas of a model are in routing, of the kind that has most.
func (c *Capacity) replicas(model string) (most int) {
	for _, kind := range target.Kinds {
		most = max(most, c.registry.Serving(target.Target{Model: model, Kind: kind}))
	}
	return most
}

// Serving is part of holdstate.Slots.
func (c *Capacity) Serving(t target.Target) bool { return c.registry.Serving(t) > 0 }
