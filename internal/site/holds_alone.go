// SPDX-License-Identifier: Apache-2.0

package site

import "time"

// Alone returns how many requests were decided without an answer of the server, since the start.
func (h *Holds) Alone() int64 { return h.noAnswer.Load() }

// others is what the other routers held against a limit at the last answer that was about it.
type others struct {
	held  int
	until time.Time // when it does not count any more
}

// know notes the answer to a call: what the others hold against its limits. What this router holds
// against them is told. The lock must be held.
func (h *Holds) know(c *holdsCall, held []int64, until time.Time) {
	for i, l := range c.limits {
		h.others[l] = others{held: int(held[i]), until: until}
		set(h.alone, l, h.alone[l]-c.alone[i])
	}
}

// forget removes what the others held too long ago. The lock must be held.
func (h *Holds) forget(now time.Time) {
	for l, o := range h.others {
		if !now.Before(o.until) {
			delete(h.others, l)
		}
	}
}

// free returns how many more requests this router may hold against the limit l as far as it knows.
// The lock must be held.
func (h *Holds) free(l holdLimit, now time.Time) int {
	n := h.limitOf(l) - h.counts[l]
	if o := h.others[l]; now.Before(o.until) {
		n -= o.held
	}
	return n
}

// freeAlone is free for a request without an answer. Since the other routers may decide alone, too,
// a router takes only an equal part of what is free before it has told the server, at least one
// request. The lock must be held.
func (h *Holds) freeAlone(l holdLimit, now time.Time) int {
	n := h.free(l, now)
	if n <= 0 || !h.client.Up() && !now.Before(h.others[l].until) {
		return n
	}
	alone := h.alone[l]
	return max(1, (n+alone)/h.client.LastRouters()) - alone
}

// decide returns whether something is free of all limits of a request, and if so counts it unless
// it is only a look. The lock must be held.
func (h *Holds) decide(a *holdAsk, free func(l holdLimit, now time.Time) int) (fits bool) {
	now := time.Now()
	for _, l := range a.hold.limits {
		if free(l, now) <= 0 {
			return false
		}
	}
	if !a.look {
		a.hold.counted = true
		h.add(a.hold.limits, 1)
	}
	return true
}

// decideAlone decides a request without an answer. What it counts is yet to be written. The lock
// must be held.
func (h *Holds) decideAlone(a *holdAsk) (fits bool) {
	fits = h.decide(a, h.freeAlone)
	if a.look {
		return fits
	}
	h.noAnswer.Add(1)
	if fits {
		for _, l := range a.hold.limits {
			h.alone[l]++
		}
		h.changed(a.hold.limits)
		h.wakeUp()
	}
	return fits
}
