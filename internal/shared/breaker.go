// SPDX-License-Identifier: Apache-2.0

package shared

import "sync/atomic"

// failuresAllowed is how many calls in a row may fail before the client is down.
const failuresAllowed = 3

// breaker says whether calls are made. It is closed while the server answers.
type breaker struct {
	open     atomic.Bool
	failures atomic.Int32
}

// newBreaker returns one that is open: nothing is known of the server yet.
func newBreaker() *breaker {
	b := &breaker{}
	b.open.Store(true)
	return b
}

// note counts the result of a call, and reports whether the breaker opened because of it.
func (b *breaker) note(err error) (opened bool) {
	if err == nil {
		b.failures.Store(0)
		return false
	}
	return b.failures.Add(1) >= failuresAllowed && b.open.CompareAndSwap(false, true)
}

// close lets calls through again, and reports whether they were not before.
func (b *breaker) close() (closed bool) {
	b.failures.Store(0)
	return b.open.CompareAndSwap(true, false)
}
