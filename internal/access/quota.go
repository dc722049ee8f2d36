// SPDX-License-Identifier: Apache-2.0

package access

import (
	"math"
	"sync"
	"time"
)

const (
	// Unlimited is Result.Remaining without a quota.
	Unlimited = -1
	// maxRetryAfter is the time in which the smallest quota, one request per minute, gets a
	// token.
	maxRetryAfter = 60
)

// Result is the result of counting a request against the quotas of its key.
type Result struct {
	// OK: the request was charged. Otherwise nothing was charged.
	OK bool
	// Remaining is how many more requests may be charged now, by the tightest limit that
	// applies, or Unlimited.
	Remaining int
	// RetryAfter is in how many seconds a request may be charged, from 1 to 60, if no other
	// is charged before. It is 0 when OK.
	RetryAfter int
}

// unlimited is the result without a limit.
var unlimited = Result{OK: true, Remaining: Unlimited}

// include adds a bucket, of which left tokens are left, to the result.
func (r *Result) include(left, perMinute float64) {
	if left < 1 {
		r.OK = false
		r.RetryAfter = max(r.RetryAfter, retryAfter(left, perMinute))
	}
	if r.Remaining == Unlimited || int(left) < r.Remaining {
		r.Remaining = int(left)
	}
}

// take takes the request itself off what remains, after all buckets were included.
func (r *Result) take() {
	if r.OK && r.Remaining != Unlimited {
		r.Remaining--
	}
}

// retryAfter returns in how many seconds a bucket with less than one token has one.
func retryAfter(left, perMinute float64) int {
	seconds := math.Ceil((1 - left) * 60 / perMinute)
	return int(min(max(seconds, 1), maxRetryAfter))
}

// quota has the limits of a key and the tokens that are left. All versions of a key share
// one quota.
type quota struct {
	id      string  // of the key; set with the limiter
	limiter Limiter // nil: this router counts alone

	mu     sync.Mutex
	latest time.Time
	all    *limit // nil: no limit over all models
	models map[string]*limit
}

// limits are those that apply to a request: over all models, and of its model. nil: none.
type limits [2]*limit

// ofModel is the index of the limit of the model.
const ofModel = 1

// Charge counts a request against two limits: that of the key, and that of the key for the
// model, which grows with the replicas of the model. It counts against neither when one of
// them is used up. Without replicas the limit for the model does not apply; for a model that
// may be held the caller must pass at least one. A nil key has no limits.
func (k *Key) Charge(model string, replicas int, now time.Time) Result {
	if k == nil || k.quota == nil {
		return unlimited
	}
	q := k.quota
	if q.limiter != nil {
		return q.chargeShared(model, replicas, now)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.chargeAlone(model, replicas, now)
}

// chargeAlone counts a request against this router's part of the limits. The lock must be
// held.
func (q *quota) chargeAlone(model string, replicas int, now time.Time) Result {
	now = q.notBefore(now)
	ls := q.limits(model, replicas, now)
	r := ls.look(now)
	if !r.OK || r.Remaining == Unlimited {
		return r
	}
	for _, l := range ls {
		if l != nil {
			l.part.add(-1, now)
		}
	}
	return r
}

// limits returns the limits that apply to a request, after adapting them to a number of
// replicas.
func (q *quota) limits(model string, replicas int, now time.Time) (ls limits) {
	routers := 1
	if q.limiter != nil {
		routers = q.limiter.Routers()
	}
	if q.all.adapt(1, routers, now) {
		ls[0] = q.all
	}
	if l := q.models[model]; l.adapt(replicas, routers, now) {
		ls[ofModel] = l
	}
	return ls
}

// look returns the result of a request that is charged to this router's part of the limits.
func (ls limits) look(now time.Time) Result {
	r := unlimited
	for _, l := range ls {
		if l != nil {
			r.include(l.part.left(now), l.part.perMinute)
		}
	}
	r.take()
	return r
}

// notBefore returns now, or the latest time that was used before if that is later. If the
// time of a bucket went back, it would add the tokens of that time twice.
func (q *quota) notBefore(now time.Time) time.Time {
	if now.After(q.latest) {
		q.latest = now
	}
	return q.latest
}

// share has all quotas counted by a limiter, nil for none. It must be called before a key is
// used.
func (k *Keys) share(limiter Limiter) {
	for id, key := range k.byID {
		if key.quota != nil {
			key.quota.id, key.quota.limiter = id, limiter
		}
	}
}

// takeOver gives each key the tokens that it had in an older version of the file.
func (k *Keys) takeOver(old *Keys, now time.Time) {
	if old == nil {
		return
	}
	for id, key := range k.byID {
		if before := old.byID[id]; before != nil && before.quota != nil && key.quota != nil {
			before.quota.change(key.quota, now)
			key.quota = before.quota
		}
	}
}

// change sets the limits to those of another quota, which is not used yet, and keeps the
// tokens.
func (q *quota) change(to *quota, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now = q.notBefore(now)
	q.all = q.all.change(to.all, now)
	for model, l := range to.models {
		to.models[model] = q.models[model].change(l, now)
	}
	q.models = to.models
}
