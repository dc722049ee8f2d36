// SPDX-License-Identifier: Apache-2.0

package access

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// refBucket is a token bucket in whole numbers: a token is a minute in
// nanoseconds, and a nanosecond earns the requests per minute.
type refBucket struct {
	perMinute, level int64
	at               time.Time
	most             int64 // the largest limit of the minute before until
	until            time.Time
}

const refToken = int64(time.Minute)

func newRef(perMinute int64, now time.Time) *refBucket {
	return &refBucket{perMinute: perMinute, level: perMinute * refToken, at: now}
}

func (b *refBucket) advance(now time.Time) {
	b.level = min(b.level+int64(now.Sub(b.at))*b.perMinute, b.perMinute*refToken)
	b.at = now
}

// resize lets what is above all limits of the last minute bring its tokens.
func (b *refBucket) resize(perMinute int64) {
	had := b.perMinute
	if b.at.Before(b.until) {
		had = max(had, b.most)
	}
	b.level = min(b.level+max(0, perMinute-had)*refToken, perMinute*refToken)
	b.perMinute = perMinute
	if perMinute >= b.most || !b.at.Before(b.until) {
		b.most, b.until = perMinute, b.at.Add(time.Minute)
	}
}

func (b *refBucket) tokens() float64 { return float64(b.level) / float64(refToken) }

// whole says that a number is so close to a whole one that rounding decides.
func whole(n float64) bool { return math.Abs(n-math.Round(n)) < 1e-6 }

// TestQuotasCountLikeWholeNumbers compares every answer with buckets that are
// counted exactly: both charged or neither, the tightest remaining, nothing
// refused that fits, and a Retry-After that is true to the second.
func TestQuotasCountLikeWholeNumbers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		perMinute := rapid.IntRange(1, 40).Draw(rt, "per minute")
		perReplica := rapid.IntRange(1, 20).Draw(rt, "per replica")
		k := limited(t, perMinute, perReplica)
		now := noon
		all := newRef(int64(perMinute), now)
		var llama *refBucket
		for range rapid.IntRange(1, 150).Draw(rt, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 5000).Draw(rt, "ms")) * time.Millisecond)
			replicas := rapid.IntRange(0, 3).Draw(rt, "replicas")
			all.advance(now)
			buckets := []*refBucket{all}
			if limit := int64(perReplica * replicas); limit > 0 {
				if llama == nil {
					llama = newRef(limit, now)
				}
				llama.advance(now)
				llama.resize(limit)
				buckets = append(buckets, llama)
			}
			tightest, wait := math.Inf(1), 0.0
			for _, b := range buckets {
				tightest = min(tightest, b.tokens())
				wait = max(wait, (1-b.tokens())*60/float64(b.perMinute))
			}
			got := k.Charge("llama", replicas, now)
			if got.OK != (tightest >= 1) && whole(tightest) {
				return
			}
			require.Equal(rt, tightest >= 1, got.OK)
			if !got.OK {
				require.Zero(rt, got.Remaining)
				if !whole(wait) {
					require.Equal(rt, int(math.Ceil(wait)), got.RetryAfter)
				}
				continue
			}
			require.Zero(rt, got.RetryAfter)
			for _, b := range buckets {
				b.level -= refToken
			}
			if !whole(tightest) {
				require.Equal(rt, int(tightest-1), got.Remaining)
			}
		}
	})
}

// TestNoWindowHasMoreThanItsLimit: between any two charges there are at most the
// burst and the tokens of the time between them. A time before the latest that was used, as
// from a goroutine that took its time earlier and charges later, adds no tokens.
func TestNoWindowHasMoreThanItsLimit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		perMinute := rapid.IntRange(1, 50).Draw(rt, "per minute")
		k := limited(t, perMinute, 0)
		now, latest := noon, time.Time{}
		var good []time.Time
		for range rapid.IntRange(1, 200).Draw(rt, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(-2000, 3000).Draw(rt, "ms")) * time.Millisecond)
			if now.After(latest) {
				latest = now
			}
			if k.Charge("any", 1, now).OK {
				good = append(good, latest)
			}
		}
		for i, first := range good {
			for j, last := range good[i:] {
				require.LessOrEqual(rt, float64(j+1), float64(perMinute)*(1+last.Sub(first).Minutes())+1e-6)
			}
		}
	})
}

// TestWhoComesBackInTimeIsServed: a client that waits for Retry-After gets its
// token, and one that retries a second earlier does not.
func TestWhoComesBackInTimeIsServed(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		perMinute := rapid.IntRange(1, 120).Draw(rt, "per minute")
		k := limited(t, perMinute, 0)
		now := noon
		for range 50 {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(rt, "ns")))
			spend(k, "any", 1, now)
			r := k.Charge("any", 1, now)
			require.False(rt, r.OK)
			require.GreaterOrEqual(rt, r.RetryAfter, 1)
			require.LessOrEqual(rt, r.RetryAfter, 60)
			if r.RetryAfter > 1 {
				sooner := time.Duration(r.RetryAfter-1)*time.Second - time.Microsecond // tokens are no whole numbers
				require.False(rt, k.Charge("any", 1, now.Add(sooner)).OK)
			}
			now = now.Add(time.Duration(r.RetryAfter) * time.Second)
			require.True(rt, k.Charge("any", 1, now).OK)
		}
	})
}
