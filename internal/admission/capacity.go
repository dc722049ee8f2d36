// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/policy"
	"github.com/holdgate/holdgate/internal/target"
)

// Capacity is what the registry and the policies give to requests. It is the
// hold machine's Slots.
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

// unlimited is the room of a model without limits: it is not counted.
type unlimited struct{}

func (unlimited) Release() {}

// ask is what a request asks of the gate.
func (c *Capacity) ask(t target.Target, w *Attempts, l Limits) Ask {
	return Ask{
		Model: t.Model, Limits: l, Replicas: c.registry.Serving(t),
		Tokens: w.Tokens, Key: w.Key.ID, Share: w.Key.Share, Again: w.again,
	}
}

// Admit is part of holdstate.Slots. Its errors are those of this package.
func (c *Capacity) Admit(r *holdstate.Request, behind bool) (holdstate.Reservation, error) {
	w, p := r.Detail.(*Attempts), c.Of(r.Target.Model)
	if w.exhausted(p.Steps) {
		return nil, holdstate.ErrTriesUsed
	}
	l := limits(p)
	switch {
	case l == Limits{}:
		return unlimited{}, nil
	case behind && !w.again:
		_, err := c.gate.Fits(c.ask(r.Target, w, l))
		return nil, err
	}
	room, err := c.gate.Admit(c.ask(r.Target, w, l))
	if room == nil {
		return nil, err
	}
	return room, nil
}

// Take is part of holdstate.Slots.
func (c *Capacity) Take(r *holdstate.Request, room holdstate.Reservation) (holdstate.Grant, holdstate.TakeResult) {
	w, steps := r.Detail.(*Attempts), c.Of(r.Target.Model).Steps
	if len(steps) == 0 {
		slot, outcome := c.registry.TakeFrom(r.Target, w.among(nil))
		switch {
		case outcome == agentreg.Taken:
			return &Grant{Slot: slot, room: room, wish: w}, holdstate.Taken
		case w.pausing():
			return nil, holdstate.Later
		}
		return nil, holdstate.Full
	}
	g := &Grant{room: room, wish: w}
	step := w.walk(steps, func(s *policy.Step) (outcome agentreg.Outcome) {
		g.Slot, outcome = c.registry.TakeFrom(r.Target, w.among(&s.Match))
		return outcome
	})
	switch {
	case step != nil:
		g.step = step.Name
		return g, holdstate.Taken
	case w.pausing():
		return nil, holdstate.Later
	case c.registry.Capacity(r.Target).Free > 0:
		return nil, holdstate.Unfit
	}
	return nil, holdstate.Full
}

// Look says what Admit and Take would give at this moment: whether the gate has
// room, and whether a slot is free. The error is Admit's.
func (c *Capacity) Look(t target.Target, w *Attempts) (room, slot bool, err error) {
	p := c.Of(t.Model)
	if w.exhausted(p.Steps) {
		return false, false, holdstate.ErrTriesUsed
	}
	if room, err = c.gate.Fits(c.ask(t, w, limits(p))); err != nil {
		return false, false, err
	}
	look := func(f agentreg.Filter) agentreg.Outcome {
		switch has := c.registry.CapacityFrom(t, f); {
		case has.Replicas == 0:
			return agentreg.None
		case has.Free == 0:
			return agentreg.Full
		}
		return agentreg.Taken
	}
	if len(p.Steps) == 0 {
		return room, look(w.among(nil)) == agentreg.Taken, nil
	}
	return room, w.walk(p.Steps, func(s *policy.Step) agentreg.Outcome { return look(w.among(&s.Match)) }) != nil, nil
}

// Next is part of holdstate.Slots.
func (c *Capacity) Next(r *holdstate.Request) bool {
	w, steps := r.Detail.(*Attempts), c.Of(r.Target.Model).Steps
	for i := w.reach + 1; i < len(steps); i++ {
		if !w.spent(&steps[i]) && c.registry.CapacityFrom(r.Target, fits{&steps[i].Match}).Replicas > 0 {
			w.reach = i
			return true
		}
	}
	return false
}
