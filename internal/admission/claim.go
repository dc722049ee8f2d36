// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/policy"
)

// unlimited is the reservation for a model without limits: it is not counted.
type unlimited struct{}

func (unlimited) Release() {}

// policy returns the policy of the request's model.
func (a *Attempts) policy() *policy.Model { return a.capacity.Of(a.Target.Model) }

// ask is what the request asks of the gate.
func (a *Attempts) ask(l Limits) Ask {
	return Ask{
		Model: a.Target.Model, Limits: l, Replicas: a.capacity.registry.Serving(a.Target),
		Tokens: a.Tokens, Key: a.Key.ID, Share: a.Key.Share, Again: a.again,
	}
}

// Admit is part of holdstate.Claim.
func (a *Attempts) Admit(behind bool) (holdstate.Reservation, error) {
	p := a.policy()
	if a.exhausted(p.Steps) {
		return nil, holdstate.ErrTriesUsed
	}
	l := limits(p)
	switch {
	case l == Limits{}:
		return unlimited{}, nil
	case behind && !a.again:
		_, err := a.capacity.gate.Fits(a.ask(l))
		return nil, err
	}
	r, err := a.capacity.gate.Admit(a.ask(l))
	if r == nil {
		return nil, err
	}
	return r, nil
}

// Take is part of holdstate.Claim.
func (a *Attempts) Take(r holdstate.Reservation) (holdstate.Grant, holdstate.TakeResult) {
	registry, steps := a.capacity.registry, a.policy().Steps
	if len(steps) == 0 {
		slot, outcome := registry.TakeFrom(a.Target, a.among(nil))
		switch {
		case outcome == agentreg.Taken:
			return &Grant{Slot: slot, reservation: r, attempts: a}, holdstate.Taken
		case a.pausing():
			return nil, holdstate.Later
		}
		return nil, holdstate.Full
	}
	g := &Grant{reservation: r, attempts: a}
	step := a.walk(steps, func(s *policy.Step) (outcome agentreg.Outcome) {
		g.Slot, outcome = registry.TakeFrom(a.Target, a.among(&s.Match))
		return outcome
	})
	switch {
	case step != nil:
		g.step = step.Name
		return g, holdstate.Taken
	case a.pausing():
		return nil, holdstate.Later
	case registry.Capacity(a.Target).Free > 0:
		return nil, holdstate.Unfit
	}
	return nil, holdstate.Full
}

// Next is part of holdstate.Claim.
func (a *Attempts) Next() bool {
	steps := a.policy().Steps
	for i := a.reach + 1; i < len(steps); i++ {
		if !a.spent(&steps[i]) && a.capacity.registry.CapacityFrom(a.Target, fits{&steps[i].Match}).Replicas > 0 {
			a.reach = i
			return true
		}
	}
	return false
}

// Look returns what Admit and Take would give at this moment: whether the gate has room,
// whether a slot is free, and the error of Admit.
func (a *Attempts) Look() (room, slot bool, err error) {
	p := a.policy()
	if a.exhausted(p.Steps) {
		return false, false, holdstate.ErrTriesUsed
	}
	if room, err = a.capacity.gate.Fits(a.ask(limits(p))); err != nil {
		return false, false, err
	}
	look := func(f agentreg.Filter) agentreg.Outcome {
		switch has := a.capacity.registry.CapacityFrom(a.Target, f); {
		case has.Replicas == 0:
			return agentreg.None
		case has.Free == 0:
			return agentreg.Full
		}
		return agentreg.Taken
	}
	if len(p.Steps) == 0 {
		return room, look(a.among(nil)) == agentreg.Taken, nil
	}
	return room, a.walk(p.Steps, func(s *policy.Step) agentreg.Outcome { return look(a.among(&s.Match)) }) != nil, nil
}
