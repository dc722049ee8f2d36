// SPDX-License-Identifier: Apache-2.0

package reload

import (
	"context"
	"time"
)

const (
	// Interval is the interval at which a file is checked.
	Interval = 2 * time.Second
	// settle is how long a changed file must stay unchanged before it is read.
	settle = 200 * time.Millisecond
)

// Watch reads the file again when it has changed, until ctx ends. It reads a file that could
// not be read or is gone at each check, and so it does if a further file may be invalid.
func (f *File[T]) Watch(ctx context.Context) {
	timer := time.NewTimer(Interval)
	defer timer.Stop()
	var before fileStates
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		at := statesOf(append([]string{f.path}, f.extraFiles()...))
		timer.Reset(f.step(before, at))
		before = at
	}
}

// step reloads the file if it has changed and the states of the last two checks, before and
// at, are the same. It returns the time until the next check.
func (f *File[T]) step(before, at fileStates) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.seen.reliable() && f.seen.same(at) {
		return Interval
	}
	if !at.same(before) {
		return settle
	}
	_ = f.reload(false) // it logs the error
	return Interval
}
