// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/holdgate/holdgate/internal/refusal"
)

// memory is the memory that all request bodies together may take. A part of it is for
// small bodies alone, so that large uploads, which may be slow, do not block small
// requests.
type memory struct {
	small, large *semaphore.Weighted
	most         int64 // for one body
}

// smallBody is the size up to which a body takes memory of the small ones.
const smallBody = 256 << 10

func newMemory(total, largest int64) memory {
	small := total / 4
	large := max(total-small, largest)
	return memory{small: semaphore.NewWeighted(small), large: semaphore.NewWeighted(large), most: large}
}

// memoryWait is how long a request waits for memory before it is refused.
const memoryWait = 30 * time.Second

// share is the memory that one body has taken.
type share struct {
	m       memory
	n       int64
	isLarge bool
}

// grow takes memory for a body of n bytes so far, and of at most bytes in the end.
// body that becomes large, or finds no memory of the small ones, takes all that it may
// need at once: uploads that each have a part and wait for more would wait for each other.
// A body that needs more than there is takes all. The error is a *refusal.Refusal or
// errGone.
func (s *share) grow(ctx context.Context, n, most int64) error {
	n, most = min(n, s.m.most), min(most, s.m.most)
	switch {
	case n <= s.n:
		return nil
	case s.isLarge:
		return s.take(ctx, s.m.large, n-s.n)
	case n <= smallBody && s.m.small.TryAcquire(n-s.n):
		s.n = n
		return nil
	}
	before := s.n
	s.n = 0
	err := s.take(ctx, s.m.large, max(n, most))
	if err != nil {
		s.n = before
		return err
	}
	s.m.small.Release(before)
	s.isLarge = true
	return nil
}

func (s *share) take(ctx context.Context, of *semaphore.Weighted, n int64) error {
	if !of.TryAcquire(n) {
		ctx, cancel := context.WithTimeout(ctx, memoryWait)
		defer cancel()
		if of.Acquire(ctx, n) != nil {
			if context.Cause(ctx) == context.DeadlineExceeded { //nolint:errorlint // never wrapped
				return refusal.NoMemory()
			}
			return errGone
		}
	}
	s.n += n
	return nil
}

// shrink gives back what is above n.
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
