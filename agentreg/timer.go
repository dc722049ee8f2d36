// SPDX-License-Identifier: Apache-2.0

package agentreg

import "time"

// setTimer sets the agent's timer to the next moment at which something may be due.
// Releases and statuses do not set it: onTimer looks again.
func (a *registration) setTimer() {
	if a.left {
		return
	}
	now := time.Now()
	next := a.silentAt()
	earlier := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	if a.messages.unacknowledged() {
		earlier(a.deafAt())
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
		if cause := a.lost(now); cause != nil {
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

// silentAt is when the agent is removed unless a message comes before, deafAt when it is
// unless it acknowledges the last command.
func (a *registration) silentAt() time.Time { return a.heartbeat.at.Add(a.registry.opts.Liveness) }

func (a *registration) deafAt() time.Time { return a.messages.sentAt.Add(a.registry.opts.Liveness) }

// lost is why the agent must be removed, nil when it need not be.
func (a *registration) lost(now time.Time) error {
	if !now.Before(a.silentAt()) {
		return errSilent
	}
	if a.messages.unacknowledged() && !now.Before(a.deafAt()) {
		return errDeaf
	}
	return nil
}

// idleUntil is when the agent is due for a Sleep for being idle; ok is false when it is
// not. With a slot taken it is the earliest possible time.
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
