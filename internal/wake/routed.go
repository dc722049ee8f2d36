// SPDX-License-Identifier: Apache-2.0

package wake

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Recent remembers for each model when a request was last routed to it.
type Recent struct {
	begin time.Time // times are kept as distances from it, so no clock can be set back

	mu   sync.RWMutex
	seen map[string]*atomic.Int64
}

// NewRecent makes a Recent in which nothing was routed.
func NewRecent() *Recent {
	return &Recent{begin: time.Now(), seen: map[string]*atomic.Int64{}}
}

// Touch notes that a request was routed to the model. For a name it has seen
// before that is one look into a map and one store, without an allocation.
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
		// The name may be a piece of a whole request.
		r.seen[strings.Clone(model)] = last
	}
	last.Store(now)
}

// last is when the model was touched, nil for never.
func (r *Recent) last(model string) *atomic.Int64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.seen[model]
}

// Within says whether a request was routed to the model in the time d before now.
func (r *Recent) Within(model string, d time.Duration, now time.Time) bool {
	last := r.last(model)
	return last != nil && now.Sub(r.begin)-time.Duration(last.Load()) < d
}

// Forget removes the models that are not known and that no request was routed to for the
// time d.
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
