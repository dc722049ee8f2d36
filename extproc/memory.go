// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/holdgate/holdgate/internal/refusal"
)

// memory is what all request bodies together may take. Bodies that have not grown
// yet have a part of it for themselves, so that large uploads, which may come
// slowly, do not stand in the way of small requests.
type memory struct {
	small, large *semaphore.Weighted
	most         int64 // that one body may take
}

// smallBody is how far a body may grow until it needs memory of the large ones.
const smallBody = 256 << 10

func newMemory(total, largest int64) memory {
	small := total / 4
	large := max(total-small, largest)
	return memory{small: semaphore.NewWeighted(small), large: semaphore.NewWeighted(large), most: large}
}

// memoryWait is how long reading pauses for memory before a request is refused.
const memoryWait = 30 * time.Second

// share is what one body has of the memory.
type share struct {
	m       memory
	n       int64
	isLarge bool
}

// grow makes room for a body of n bytes so far, whose end is at most at most. A body
// that becomes large, or finds no memory of the small ones, takes all that it may
// need at once: uploads that each have a part and wait for more would wait for each
// other. What is more than all memory stands for all of it. Its error is a *refusal.Refusal or
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
