// SPDX-License-Identifier: Apache-2.0

package wake

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Recent records for each model when a request was last routed to it.
type Recent struct {
	begin time.Time // times are stored as durations since it, by the monotonic clock

	mu   sync.RWMutex
	seen map[string]*atomic.Int64
}

// NewRecent returns a Recent without any request.
func NewRecent() *Recent {
	return &Recent{begin: time.Now(), seen: map[string]*atomic.Int64{}}
}

// Touch records that a request was routed to the model. If the model was touched before, this
// is one map lookup and one store, without an allocation.
func (r *Recent) Touch(model string) {
	now := int64(time.Since(r.begin))
	if last := r.last(model); last != nil {
		last.Store(now)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	last := r.seen[model]
	if last == nil {
		last = new(atomic.Int64)
		// Without the copy, the key could keep the string of a whole request in memory.
		r.seen[strings.Clone(model)] = last
	}
	last.Store(now)
}

// last returns when the model was last touched, nil if never.
func (r *Recent) last(model string) *atomic.Int64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.seen[model]
}

// Within reports whether a request was routed to the model within the last d before now.
func (r *Recent) Within(model string, d time.Duration, now time.Time) bool {
	last := r.last(model)
	return last != nil && now.Sub(r.begin)-time.Duration(last.Load()) < d
}

// Each calls f for each model to which a request was routed, with how long that is ago. f is
// called under a lock and must be short.
func (r *Recent) Each(f func(model string, ago time.Duration)) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	now := time.Since(r.begin)
	for model, last := range r.seen {
		f(model, now-time.Duration(last.Load()))
	}
}

// Forget removes models for which known returns false and to which no request was routed
// within the last d.
func (r *Recent) Forget(d time.Duration, known func(model string) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Since(r.begin)
	for model, last := range r.seen {
		if now-time.Duration(last.Load()) >= d && !known(model) {
			delete(r.seen, model)
		}
	}
}
