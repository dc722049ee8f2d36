// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/policy"
)

// policy returns the policy of the request's model.
func (a *Attempts) policy() *policy.Model { return a.capacity.policyOf(a.Target.Model) }

// limits returns the limits of the request's model. The error is ErrTriesUsed when no step
// of the policy has tries left.
func (a *Attempts) limits() (limits, error) {
	p := a.policy()
	if a.allUsedUp(p.Steps) {
		return limits{}, holdstate.ErrTriesUsed
	}
	return limitsOf(p), nil
}

func (a *Attempts) gateRequest(l limits) gateRequest {
	return gateRequest{
		model: a.Target.Model, limits: l, replicas: a.capacity.registry.Serving(a.Target),
		tokens: a.Tokens, key: a.Key.ID, share: a.Key.Share, retry: a.unanswered,
	}
}

// Admit is part of holdstate.Claim.
func (a *Attempts) Admit(behind bool) (holdstate.Reservation, error) {
	l, err := a.limits()
	switch {
	case err != nil:
		return nil, err
	case l == limits{}:
		return unlimited{}, nil
	case behind && !a.unanswered:
		_, err := a.capacity.gate.fits(a.gateRequest(l))
		return nil, err
	}
	r, err := a.capacity.gate.reserve(a.gateRequest(l))
	if r == nil {
		return nil, err
	}
	return r, nil
}

// Take is part of holdstate.Claim.
func (a *Attempts) Take(r holdstate.Reservation) (holdstate.Grant, holdstate.TakeResult) {
	var slot *agentreg.Slot
	step, result := a.take(func(f agentreg.Filter) (outcome agentreg.Outcome) {
		slot, outcome = a.capacity.registry.TakeFrom(a.Target, f)
		return outcome
	})
	if result != holdstate.Taken {
		return nil, result
	}
	return &Grant{Slot: slot, reservation: r, attempts: a, step: step}, result
}

// take calls try for the replicas that the request may be sent to: step by step, or for all
// if the policy has no steps. It returns the name of the step that had a slot.
func (a *Attempts) take(try func(agentreg.Filter) agentreg.Outcome) (step string, result holdstate.TakeResult) {
	steps := a.policy().Steps
	if len(steps) == 0 {
		switch {
		case try(a.filter(nil)) == agentreg.Taken:
			return "", holdstate.Taken
		case a.paused():
			return "", holdstate.Later
		case a.Hint != nil && a.hasFree():
			return "", holdstate.Unfit
		}
		return "", holdstate.Full
	}
	taken := a.tryOpen(steps, func(s *policy.Step) agentreg.Outcome { return try(a.filter(&s.Match)) })
	switch {
	case taken != nil:
		return taken.Name, holdstate.Taken
	case a.paused():
		return "", holdstate.Later
	case a.hasFree():
		return "", holdstate.Unfit
	}
	return "", holdstate.Full
}

// hasFree reports whether any replica of the target has a free slot.
func (a *Attempts) hasFree() bool { return a.capacity.registry.Capacity(a.Target).Free > 0 }

// Next is part of holdstate.Claim. It lets the request use the next step with a replica.
func (a *Attempts) Next() bool {
	steps := a.policy().Steps
	for i := a.lastOpen + 1; i < len(steps); i++ {
		if !a.usedUp(&steps[i]) && a.capacity.registry.CapacityFrom(a.Target, matching{&steps[i].Match}).Replicas > 0 {
			a.lastOpen = i
			return true
		}
	}
	return false
}

// DryRun returns a claim that returns the same results as a, but reserves and takes nothing.
// Its grants are nil.
func (a *Attempts) DryRun() holdstate.Claim { return &dryRun{*a} }

// dryRun has a copy of the attempts, so that Next does not change the original.
type dryRun struct{ Attempts }

// Admit is part of holdstate.Claim.
func (d *dryRun) Admit(behind bool) (holdstate.Reservation, error) {
	l, err := d.limits()
	if err != nil {
		return nil, err
	}
	fits, err := d.capacity.gate.fits(d.gateRequest(l))
	if !fits || behind && !d.unanswered {
		return nil, err
	}
	return unlimited{}, nil
}

// Take is part of holdstate.Claim.
func (d *dryRun) Take(holdstate.Reservation) (holdstate.Grant, holdstate.TakeResult) {
	_, result := d.take(func(f agentreg.Filter) agentreg.Outcome {
		switch has := d.capacity.registry.CapacityFrom(d.Target, f); {
		case has.Replicas == 0:
			return agentreg.None
		case has.Free == 0:
			return agentreg.Full
		}
		return agentreg.Taken
	})
	return nil, result
}
