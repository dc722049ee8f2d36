// SPDX-License-Identifier: Apache-2.0

package agentreg

import "time"

// arm sets rec's timer to the next moment at which something about it could be
// due. Releases and statuses do not touch the timer: it looks again when it
// fires.
func (r *Registry) arm(rec *registration) {
	if rec.released || rec.timer == nil {
		return
	}
	now := time.Now()
	next := rec.lastSeen.Add(r.opts.Liveness)
	earlier := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	if rec.handled < rec.command {
		earlier(rec.saidAt.Add(r.opts.Liveness))
	}
	if rec.wakeFailed {
		earlier(rec.retryAt)
	}
	if rec.failed && !rec.probeAt.IsZero() {
		earlier(rec.probeAt)
	}
	if at, ok := r.idleEnd(rec, now); ok {
		earlier(at)
	}
	rec.timer.Reset(max(next.Sub(now), 0))
}

// idleEnd is when rec is due to be told Sleep. With a slot taken it is the
// earliest time that could be so.
func (r *Registry) idleEnd(rec *registration, now time.Time) (time.Time, bool) {
	if !rec.routed || rec.hello.idleTimeout <= 0 || r.wantedAny(rec) {
		return time.Time{}, false
	}
	g := &rec.replica.gate
	if g.inFlight() > 0 {
		return now.Add(rec.hello.idleTimeout), true
	}
	end := r.epoch.Add(time.Duration(g.idleSince.Load())).Add(rec.hello.idleTimeout)
	if settled := rec.upAt.Add(rec.hello.minUp); end.Before(settled) {
		end = settled
	}
	return end, true
}

// tick does what is due for rec.
func (r *Registry) tick(rec *registration) {
	r.update(func() {
		if rec.released {
			return
		}
		now := time.Now()
		if cause := r.lost(rec, now); cause != nil {
			r.remove(rec, cause)
			return
		}
		r.probe(rec, now)
		if rec.wakeFailed && !now.Before(rec.retryAt) {
			rec.wakeFailed = false
		}
		if at, ok := r.idleEnd(rec, now); ok && !now.Before(at) {
			r.sleep(rec)
		}
		r.settle(rec)
	})
}

// lost says why rec can no longer be believed, nil when it can.
func (r *Registry) lost(rec *registration, now time.Time) error {
	if !now.Before(rec.lastSeen.Add(r.opts.Liveness)) {
		return errSilent
	}
	if rec.handled < rec.command && !now.Before(rec.saidAt.Add(r.opts.Liveness)) {
		return errDeaf
	}
	return nil
}
