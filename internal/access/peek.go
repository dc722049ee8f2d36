// SPDX-License-Identifier: Apache-2.0

package access

import "time"

// Peek returns what Charge would return now, and charges nothing.
func (k *Key) Peek(model string, replicas int, now time.Time) Result {
	if k == nil || k.quota == nil {
		return Result{OK: true, Remaining: Unlimited}
	}
	q := k.quota
	q.mu.Lock()
	defer q.mu.Unlock()
	if now.Before(q.latest) {
		now = q.latest
	}
	r := Result{OK: true, Remaining: Unlimited}
	if q.all != nil {
		r.include(q.all.TokensAt(now), q.all.Limit())
	}
	if b := q.models[model]; b != nil && replicas > 0 {
		perMinute := b.perMinute(replicas)
		left := float64(perMinute)
		if b.tokens != nil {
			left = min(left, b.tokens.TokensAt(now)+float64(b.added(replicas, now)))
		}
		r.include(left, perSecond(perMinute))
	}
	if r.OK && r.Remaining != Unlimited {
		r.Remaining-- // the request itself
	}
	return r
}
