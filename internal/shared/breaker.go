// SPDX-License-Identifier: Apache-2.0

package shared

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

const (
	// failuresAllowed is how many calls in a row may fail before the client is down.
	failuresAllowed = 3
	// pauseAllowed is how long all calls may be late: so long a busy machine may stop this
	// process or the server.
	pauseAllowed = 20 * time.Millisecond
)

// breaker says whether calls are made. It is closed while the server answers.
type breaker struct {
	open     atomic.Bool
	failures atomic.Int32
	since    atomic.Int64 // when the first of these calls failed, in Unix nanoseconds
}

// newBreaker returns one that is open: nothing is known of the server yet.
func newBreaker() *breaker {
	b := &breaker{}
	b.open.Store(true)
	return b
}

// note counts the result of a call that ended now, and reports whether the breaker opened
// because of it.
func (b *breaker) note(err error, now time.Time) (opened bool) {
	if err == nil {
		if b.failures.Load() != 0 {
			b.failures.Store(0)
		}
		return false
	}
	n := b.failures.Add(1)
	if n == 1 {
		b.since.Store(now.UnixNano())
	}
	if n < failuresAllowed || errors.Is(err, context.DeadlineExceeded) && now.UnixNano()-b.since.Load() < int64(pauseAllowed) {
		return false
	}
	return b.open.CompareAndSwap(false, true)
}

// close lets calls through again, and reports whether they were not before.
func (b *breaker) close() (closed bool) {
	b.failures.Store(0)
	return b.open.CompareAndSwap(true, false)
}
