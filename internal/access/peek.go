// SPDX-License-Identifier: Apache-2.0

package access

import "time"

// Peek returns what Charge would return now, and charges nothing.
func (k *Key) Peek(model string, replicas int, now time.Time) Result {
	if k == nil || k.quota == nil {
		return unlimited
	}
	q := k.quota
	ls, now := q.copies(model, replicas, now)
	if q.limiter != nil {
		asked, _ := ls.ask(model, now)
		if len(asked) == 0 {
			return unlimited
		}
		if left, err := q.limiter.Peek(q.id, asked); err == nil {
			return resultOf(left)
		}
	}
	return ls.look(now)
}

// copies returns copies of the limits that apply to a request, and the time to use.
func (q *quota) copies(model string, replicas int, now time.Time) (limits, time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if now.Before(q.latest) {
		now = q.latest
	}
	seen := &quota{limiter: q.limiter, models: map[string]*limit{}}
	if q.all != nil {
		all := *q.all
		seen.all = &all
	}
	if l := q.models[model]; l != nil {
		of := *l
		seen.models[model] = &of
	}
	return seen.limits(model, replicas, now), now
}
