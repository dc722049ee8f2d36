// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"slices"
	"sync"

	"github.com/holdgate/holdgate/internal/target"
)

// routing is the replicas that requests can be sent to. A change costs no more than the
// targets of its replica, however many others there are.
type routing struct {
	mu    sync.RWMutex
	pools map[target.Target]*pool // a pool never changes, it is replaced
}

// of gives the replicas of t, nil for none.
func (r *routing) of(t target.Target) *pool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.pools[t]
}

// publish adds rep to all of its targets, or takes it out of them.
func (r *routing) publish(rep *replica, in bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range rep.targets {
		var replicas []*replica
		if p := r.pools[t]; p != nil {
			replicas = slices.DeleteFunc(slices.Clone(p.replicas), func(x *replica) bool { return x == rep })
		}
		if in {
			replicas = append(replicas, rep)
		}
		if len(replicas) == 0 {
			delete(r.pools, t)
			continue
		}
		r.pools[t] = &pool{replicas: replicas}
	}
}
