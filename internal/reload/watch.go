// SPDX-License-Identifier: Apache-2.0

package reload

import (
	"context"
	"time"
)

const (
	// Interval is the time between two checks of a file.
	Interval = 2 * time.Second
	// settle is how long a changed file must stay the same before it is read.
	settle = 200 * time.Millisecond
)

// Watch reads the file again when it has changed, until ctx ends. A file that cannot be
// read, or is gone, is read at each check, and so is one whose value may be made from
// further files that are bad.
func (f *File[T]) Watch(ctx context.Context) {
	timer := time.NewTimer(Interval)
	defer timer.Stop()
	var before looks
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		at := looksAt(append([]string{f.path}, f.further()...))
		timer.Reset(f.step(before, at))
		before = at
	}
}

// step reloads the file if two looks in a row say so, and returns the time until the
// next look.
func (f *File[T]) step(before, at looks) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.seen.sure() && f.seen.same(at) {
		return Interval
	}
	if !at.same(before) {
		return settle
	}
	_ = f.reload(false) // it has logged the error
	return Interval
}
