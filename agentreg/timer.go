// SPDX-License-Identifier: Apache-2.0

package agentreg

import "time"

// setTimer sets the agent's timer to the earliest time at which onTimer may have something
// to do. Releases and Statuses do not set it, so onTimer may find nothing due yet and sets
// it again.
func (a *registration) setTimer() {
	if a.left {
		return
	}
	now := time.Now()
	next := a.silenceDeadline()
	earlier := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	if a.messages.unacknowledged() {
		earlier(a.ackDeadline())
	}
	if a.failures.blocked {
		earlier(a.failures.retryAt)
	}
	if a.probe.failed && !a.probe.at.IsZero() {
		earlier(a.probe.at)
	}
	if at, ok := a.idleUntil(now); ok {
		earlier(at)
	}
	a.timer.Reset(max(next.Sub(now), 0))
}

// onTimer does what is due.
func (a *registration) onTimer() {
	a.registry.update(func() {
		if a.left {
			return
		}
		now := time.Now()
		if cause := a.removalCause(now); cause != nil {
			a.remove(cause)
			return
		}
		a.sendProbe(now)
		if a.failures.blocked && !now.Before(a.failures.retryAt) {
			a.failures.blocked = false
		}
		if at, ok := a.idleUntil(now); ok && !now.Before(at) {
			a.sleepIfIdle()
		}
		a.reevaluate()
	})
}

// silenceDeadline returns when the agent is removed unless it sends a message before.
func (a *registration) silenceDeadline() time.Time {
	return a.heartbeat.at.Add(a.registry.opts.Liveness)
}

// ackDeadline returns when the agent is removed unless it acknowledges the last Wake or Sleep.
func (a *registration) ackDeadline() time.Time {
	return a.messages.sentAt.Add(a.registry.opts.Liveness)
}

// removalCause returns why the agent must be removed, nil if it must not be.
func (a *registration) removalCause(now time.Time) error {
	if !now.Before(a.silenceDeadline()) {
		return errSilent
	}
	if a.messages.unacknowledged() && !now.Before(a.ackDeadline()) {
		return errUnacknowledged
	}
	return nil
}

// idleUntil returns when the agent is to be sent a Sleep for being idle; ok is false if it
// is not to be. If a slot is taken, at is the earliest possible time.
func (a *registration) idleUntil(now time.Time) (at time.Time, ok bool) {
	timeout := a.hello.idleTimeout
	if _, wanted := a.registry.models.needOf(a); !a.routed || timeout <= 0 || wanted {
		return time.Time{}, false
	}
	if a.replica.gate.inFlight() > 0 {
		return now.Add(timeout), true
	}
	at = a.replica.gate.idleFrom().Add(timeout)
	if minUp := a.upAt.Add(a.hello.minUp); at.Before(minUp) {
		at = minUp
	}
	return at, true
}
