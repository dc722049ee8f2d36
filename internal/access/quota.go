// SPDX-License-Identifier: Apache-2.0

package access

import (
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"
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

// include adds a bucket, of which left tokens are left, to the result.
func (r *Result) include(left float64, limit rate.Limit) {
	if left < 1 {
		r.OK = false
		r.RetryAfter = max(r.RetryAfter, retryAfter(left, limit))
	}
	if r.Remaining == Unlimited || int(left) < r.Remaining {
		r.Remaining = int(left)
	}
}

// quota has the limits of a key and the tokens that are left. All versions of a key share
// one quota.
type quota struct {
	mu     sync.Mutex
	latest time.Time
	all    *rate.Limiter // nil: no limit over all models
	models map[string]*modelBucket
}

// modelBucket is the limit for one model, which grows with its replicas.
type modelBucket struct {
	perReplica int
	tokens     *rate.Limiter // nil before the first request
	replicas   int           // the number of replicas for which tokens has its limit

	// maxReplicas is the highest number of replicas for which tokens were added in the
	// minute that ends at until. A replica that comes and goes must not add tokens more than
	// once a minute.
	maxReplicas int
	until       time.Time
}

// newBucket returns a full bucket that holds the requests of one minute.
func newBucket(perMinute int) *rate.Limiter {
	return rate.NewLimiter(perSecond(perMinute), perMinute)
}

func perSecond(perMinute int) rate.Limit { return rate.Limit(float64(perMinute) / 60) }

// Charge counts a request against two limits: that of the key, and that of the key for the
// model, which grows with the replicas of the model. It counts against neither when one of
// them is used up. Without replicas the limit for the model does not apply; for a model that
// may be held the caller must pass at least one. A nil key has no limits.
func (k *Key) Charge(model string, replicas int, now time.Time) Result {
	if k == nil || k.quota == nil {
		return Result{OK: true, Remaining: Unlimited}
	}
	return k.quota.charge(model, replicas, now)
}

func (q *quota) charge(model string, replicas int, now time.Time) Result {
	q.mu.Lock()
	defer q.mu.Unlock()
	now = q.notBefore(now)
	buckets := [...]*rate.Limiter{q.all, q.models[model].at(replicas, now)}
	r := Result{OK: true, Remaining: Unlimited}
	for _, b := range buckets {
		if b != nil {
			r.include(b.TokensAt(now), b.Limit())
		}
	}
	if !r.OK || r.Remaining == Unlimited {
		return r
	}
	for _, b := range buckets {
		if b != nil {
			b.AllowN(now, 1)
		}
	}
	r.Remaining--
	return r
}

// notBefore returns now, or the latest time that was used before if that is later. If the
// time of a limiter went back, it would add the tokens of that time twice.
func (q *quota) notBefore(now time.Time) time.Time {
	if now.After(q.latest) {
		q.latest = now
	}
	return q.latest
}

// retryAfter returns in how many seconds a bucket with less than one token has one.
func retryAfter(left float64, limit rate.Limit) int {
	seconds := math.Ceil((1 - left) / float64(limit))
	return min(max(int(seconds), 1), maxRetryAfter)
}

// at returns the bucket after adapting it to a number of replicas, nil when there is no
// limit. When the number changes, the bucket keeps its tokens up to its new size, and each
// new replica adds the tokens of one minute.
func (b *modelBucket) at(replicas int, now time.Time) *rate.Limiter {
	if b == nil || replicas <= 0 {
		return nil
	}
	perMinute := b.perMinute(replicas)
	if b.tokens == nil {
		b.tokens = newBucket(perMinute)
	} else if b.replicas != replicas {
		added := b.added(replicas, now)
		resize(b.tokens, perMinute, now)
		b.tokens.AllowN(now, -added) // a negative number adds tokens
	}
	b.replicas = replicas
	if replicas >= b.maxReplicas || !now.Before(b.until) {
		b.maxReplicas, b.until = replicas, now.Add(time.Minute)
	}
	return b.tokens
}

// added returns how many tokens new replicas add.
func (b *modelBucket) added(replicas int, now time.Time) int {
	before := b.replicas
	if now.Before(b.until) {
		before = max(before, b.maxReplicas)
	}
	return max(0, b.perMinute(replicas)-b.perMinute(before))
}

// perMinute returns the limit for a number of replicas.
func (b *modelBucket) perMinute(replicas int) int {
	if replicas > maxPerMinute/b.perReplica {
		return maxPerMinute
	}
	return b.perReplica * replicas
}

func resize(b *rate.Limiter, perMinute int, now time.Time) {
	b.SetLimitAt(now, perSecond(perMinute))
	b.SetBurstAt(now, perMinute)
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
	if q.all == nil || to.all == nil {
		q.all = to.all
	} else {
		resize(q.all, to.all.Burst(), now)
	}
	for model, b := range to.models {
		if have := q.models[model]; have != nil {
			b.tokens, b.replicas, b.maxReplicas, b.until = have.tokens, have.replicas, have.maxReplicas, have.until
			if b.tokens != nil {
				resize(b.tokens, b.perMinute(b.replicas), now)
			}
		}
	}
	q.models = to.models
}
