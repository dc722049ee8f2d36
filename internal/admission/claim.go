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
	l, err := a.limits()
	switch {
	case err != nil:
		return nil, err
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

// limits returns the gate's limits for the request. It is an error when no step of the
// policy has tries left.
func (a *Attempts) limits() (Limits, error) {
	p := a.policy()
	if a.exhausted(p.Steps) {
		return Limits{}, holdstate.ErrTriesUsed
	}
	return limits(p), nil
}

// Take is part of holdstate.Claim.
func (a *Attempts) Take(r holdstate.Reservation) (holdstate.Grant, holdstate.TakeResult) {
	var slot *agentreg.Slot
	step, took := a.take(func(f agentreg.Filter) (outcome agentreg.Outcome) {
		slot, outcome = a.capacity.registry.TakeFrom(a.Target, f)
		return outcome
	})
	if took != holdstate.Taken {
		return nil, took
	}
	return &Grant{Slot: slot, reservation: r, attempts: a, step: step}, took
}

// take tries to take a slot on the replicas that the request may have: with steps on
// those of one step after the other. It returns the step that had one.
func (a *Attempts) take(try func(agentreg.Filter) agentreg.Outcome) (step string, result holdstate.TakeResult) {
	steps := a.policy().Steps
	if len(steps) == 0 {
		switch {
		case try(a.among(nil)) == agentreg.Taken:
			return "", holdstate.Taken
		case a.pausing():
			return "", holdstate.Later
		}
		return "", holdstate.Full
	}
	taken := a.walk(steps, func(s *policy.Step) agentreg.Outcome { return try(a.among(&s.Match)) })
	switch {
	case taken != nil:
		return taken.Name, holdstate.Taken
	case a.pausing():
		return "", holdstate.Later
	case a.capacity.registry.Capacity(a.Target).Free > 0:
		return "", holdstate.Unfit
	}
	return "", holdstate.Full
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

// Looking returns a claim that gets the results of a at this moment, but reserves and
// takes nothing: its grants are nil.
func (a *Attempts) Looking() holdstate.Claim { return &looking{*a} }

// looking is a copy of attempts, so that Next opens replicas to nobody else.
type looking struct{ Attempts }

// Admit is part of holdstate.Claim.
func (l *looking) Admit(behind bool) (holdstate.Reservation, error) {
	limits, err := l.limits()
	if err != nil {
		return nil, err
	}
	fits, err := l.capacity.gate.Fits(l.ask(limits))
	if !fits || behind && !l.again {
		return nil, err
	}
	return unlimited{}, nil
}

// Take is part of holdstate.Claim.
func (l *looking) Take(holdstate.Reservation) (holdstate.Grant, holdstate.TakeResult) {
	_, result := l.take(func(f agentreg.Filter) agentreg.Outcome {
		switch has := l.capacity.registry.CapacityFrom(l.Target, f); {
		case has.Replicas == 0:
			return agentreg.None
		case has.Free == 0:
			return agentreg.Full
		}
		return agentreg.Taken
	})
	return nil, result
}
