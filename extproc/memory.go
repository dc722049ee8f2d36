// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/holdgate/holdgate/internal/refusal"
)

// memory limits the memory of all request bodies together. A part of it is only for small
// bodies, so that large uploads, which may be slow, do not block small requests.
type memory struct {
	small, large *semaphore.Weighted
	largest      int64 // what one body can acquire
}

// smallBody is the size of the largest body that may use the part for small bodies.
const smallBody = 256 << 10

func newMemory(total, largest int64) memory {
	small := total / 4
	large := max(total-small, largest)
	return memory{small: semaphore.NewWeighted(small), large: semaphore.NewWeighted(large), largest: large}
}

// memoryWait is how long a request waits for memory before it is refused.
const memoryWait = 30 * time.Second

// share is the memory that one body has acquired.
type share struct {
	m       memory
	n       int64
	isLarge bool
}

// grow acquires memory for a body that has n bytes so far, and may grow to final bytes. A
// body that becomes large, or for which the part for small bodies is used up, acquires all
// that it may need at once: uploads that each have a part and wait for more would wait for
// each other. A body that needs more than there is acquires all. The error is a
// *refusal.Refusal or errGone.
func (s *share) grow(ctx context.Context, n, final int64) error {
	n, final = min(n, s.m.largest), min(final, s.m.largest)
	switch {
	case n <= s.n:
		return nil
	case s.isLarge:
		return s.acquire(ctx, s.m.large, n-s.n)
	case n <= smallBody && s.m.small.TryAcquire(n-s.n):
		s.n = n
		return nil
	}
	before := s.n
	s.n = 0
	err := s.acquire(ctx, s.m.large, max(n, final))
	if err != nil {
		s.n = before
		return err
	}
	s.m.small.Release(before)
	s.isLarge = true
	return nil
}

func (s *share) acquire(ctx context.Context, from *semaphore.Weighted, n int64) error {
	if !from.TryAcquire(n) {
		ctx, cancel := context.WithTimeout(ctx, memoryWait)
		defer cancel()
		if from.Acquire(ctx, n) != nil {
			if context.Cause(ctx) == context.DeadlineExceeded { //nolint:errorlint // never wrapped
				return refusal.NoMemory()
			}
			return errGone
		}
	}
	s.n += n
	return nil
}

// shrink releases what is above n.
func (s *share) shrink(n int64) {
	over := s.n - n
	if over <= 0 {
		return
	}
	if s.isLarge {
		s.m.large.Release(over)
	} else {
		s.m.small.Release(over)
	}
	s.n = n
}
