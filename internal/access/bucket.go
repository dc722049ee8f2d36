// SPDX-License-Identifier: Apache-2.0

package access

import "time"

// bucket is a token bucket that fills in one minute.
type bucket struct {
	perMinute float64   // the tokens that it gets
	tokens    float64   // at the time at
	at        time.Time // of the last change
}

// newBucket returns a full bucket.
func newBucket(perMinute float64, now time.Time) bucket {
	b := bucket{perMinute: perMinute, at: now}
	b.tokens = b.size()
	return b
}

// size returns how many tokens the bucket holds: those of one minute. A part of a small limit
// holds one token nevertheless, because a request cannot take less.
func (b *bucket) size() float64 { return max(1, b.perMinute) }

// left returns how many tokens are left.
func (b *bucket) left(now time.Time) float64 {
	return min(b.size(), b.tokens+now.Sub(b.at).Seconds()*b.perMinute/60)
}

// add adds n tokens. A negative n takes tokens.
func (b *bucket) add(n float64, now time.Time) { b.tokens, b.at = b.left(now)+n, now }

// resize changes the limit. The bucket keeps its tokens up to the new size.
func (b *bucket) resize(perMinute float64, now time.Time) {
	b.add(0, now)
	b.perMinute = perMinute
}
