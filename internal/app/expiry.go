// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"time"

	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/access"
)

// revoker ends the waits of requests whose key is no longer valid: because a new keys file
// does not have it, or because it has expired.
type revoker struct {
	keys    *access.Store
	machine *holdstate.Machine
	renewed chan struct{} // receives a token when there are new keys
}

func newRevoker(keys *access.Store, machine *holdstate.Machine) *revoker {
	r := &revoker{keys: keys, machine: machine, renewed: make(chan struct{}, 1)}
	keys.OnChange(func(_, _ *access.Keys) {
		r.revoke(time.Now())
		select {
		case r.renewed <- struct{}{}:
		default:
		}
	})
	return r
}

// revoke ends the waits of requests whose key is not valid, and returns the keys in force.
func (r *revoker) revoke(now time.Time) *access.Keys {
	keys := r.keys.Current()
	r.machine.Revoke(func(key string) bool { return keys.Valid(key, now) })
	return keys
}

// run calls revoke whenever a key expires, until ctx ends.
func (r *revoker) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Stop()
		now := time.Now()
		if next, ok := r.revoke(now).NextExpiry(now); ok {
			timer.Reset(time.Until(next))
		}
		select {
		case <-ctx.Done():
			return
		case <-r.renewed:
		case <-timer.C:
		}
	}
}
