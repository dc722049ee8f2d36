// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"maps"
	"slices"
)

// MaxBytes is the size of the largest file that is read.
const MaxBytes = 1 << 20

// Policy is a checked policy file.
type Policy struct {
	models  map[string]*Model
	aliases map[string]string // alias to model
}

// Model is the policy of one model.
type Model struct {
	Aliases           []string
	MaxInflight       int64  // requests at once per healthy replica; 0: no limit
	AdmitBudgetTokens int64  // tokens at once per healthy replica; 0: no limit
	Steps             []Step // in the order in which they are tried; none: any replica
	// Destination is how its requests are sent on; empty: as those of any other model.
	Destination Destination
}

// Destination is how a request is sent on to an engine.
type Destination string

// The destinations.
const (
	// Replica: to the address of a replica that the router has chosen.
	Replica Destination = "replica"
	// Route: as the gateway routes it. The router only decides when.
	Route Destination = "route"
	// Endpoint: to the address of a replica, which the router names to the gateway as an
	// endpoint picker does.
	Endpoint Destination = "endpoint"
)

// CheckDestination returns an error unless s is a destination.
func CheckDestination(s string) error {
	switch Destination(s) {
	case Replica, Route, Endpoint:
		return nil
	}
	return errors.New("must be " + string(Replica) + ", " + string(Route) + " or " + string(Endpoint))
}

// Step is a group of replicas. It is tried when no replica of an earlier step has a free
// slot.
type Step struct {
	Name     string
	Match    Match
	MaxTries int64 // how many replicas of the step a request may be sent to; 0: no limit
}

// Match selects replicas. An empty field fits every replica.
type Match struct {
	Engine string
	Region string
	Labels map[string]string
}

// Fits reports whether m selects a replica with this engine, region and labels.
func (m *Match) Fits(engine, region string, labels map[string]string) bool {
	if m.Engine != "" && m.Engine != engine || m.Region != "" && m.Region != region {
		return false
	}
	for name, value := range m.Labels {
		if labels[name] != value {
			return false
		}
	}
	return true
}

// Resolve returns the model of an alias, and any other name unchanged.
func (p *Policy) Resolve(name string) string {
	if p == nil {
		return name
	}
	if model, ok := p.aliases[name]; ok {
		return model
	}
	return name
}

// Aliases returns all aliases in alphabetical order.
func (p *Policy) Aliases() []string {
	if p == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(p.aliases))
}

// Model returns the policy of a model, nil when the file does not name it. It must not be
// changed.
func (p *Policy) Model(name string) *Model {
	if p == nil {
		return nil
	}
	return p.models[name]
}

// Destination returns how the requests of a model are sent on: as its policy says, otherwise
// as usual.
func (p *Policy) Destination(model string, usual Destination) Destination {
	if m := p.Model(model); m != nil && m.Destination != "" {
		return m.Destination
	}
	return usual
}

// Uses reports whether the requests of some model are sent on to d, where usual is how they are
// sent on otherwise.
func (p *Policy) Uses(d, usual Destination) bool {
	if usual == d {
		return true
	}
	if p != nil {
		for _, m := range p.models {
			if m.Destination == d {
				return true
			}
		}
	}
	return false
}

// Models returns the models that the file names, in alphabetical order.
func (p *Policy) Models() []string {
	if p == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(p.models))
}
