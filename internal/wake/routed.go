// SPDX-License-Identifier: Apache-2.0

package wake

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Recent remembers for each model when a request was last routed to it. It keeps
// every name it was given, so they must be names of the registry.
type Recent struct {
	begin time.Time // times are kept as distances from it, so no clock can be set back
	seen  atomic.Pointer[map[string]*atomic.Int64]
	mu    sync.Mutex // held while a name is added
}

// NewRecent makes a Recent in which nothing was routed.
func NewRecent() *Recent {
	r := &Recent{begin: time.Now()}
	r.seen.Store(&map[string]*atomic.Int64{})
	return r
}

// Touch notes that a request was routed to the model. For a name it has seen
// before that is one look into a map and one store, without an allocation.
func (r *Recent) Touch(model string) {
	now := int64(time.Since(r.begin))
	if last, ok := (*r.seen.Load())[model]; ok {
		last.Store(now)
		return
	}
	r.add(model, now)
}

// add copies the map, which readers go through without a lock.
func (r *Recent) add(model string, now int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := *r.seen.Load()
	if last, ok := old[model]; ok {
		last.Store(now)
		return
	}
	seen := maps.Clone(old)
	last := new(atomic.Int64)
	last.Store(now)
	// The name may be a piece of a whole request.
	seen[strings.Clone(model)] = last
	r.seen.Store(&seen)
}

// Within says whether a request was routed to the model in the time d before now.
func (r *Recent) Within(model string, d time.Duration, now time.Time) bool {
	last, ok := (*r.seen.Load())[model]
	return ok && now.Sub(r.begin)-time.Duration(last.Load()) < d
}
