// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"sync"
)

// wakeSignal carries changed wishes to all who can wake a model. The machine says only that a
// model's wish may have changed; the worker looks what it is. So the last look is
// the one that counts, in whatever order changes come.
type wakeSignal struct {
	mu    sync.Mutex
	dirty map[string]struct{}
	wake  chan struct{}
}

func newWakeSignal() *wakeSignal {
	return &wakeSignal{dirty: map[string]struct{}{}, wake: make(chan struct{}, 1)}
}

// changed notes a model. It never blocks.
func (l *wakeSignal) changed(model string) {
	l.mu.Lock()
	l.dirty[model] = struct{}{}
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// run looks at noted models until ctx ends.
func (l *wakeSignal) run(ctx context.Context, look func(model string)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		}
		l.mu.Lock()
		dirty := l.dirty
		l.dirty = map[string]struct{}{}
		l.mu.Unlock()
		for model := range dirty {
			look(model)
		}
	}
}
