// SPDX-License-Identifier: Apache-2.0

package holdstate

import (
	"time"

	"github.com/google/uuid"

	"github.com/holdgate/holdgate/internal/target"
)

// identity identifies a request in the demand: waiters with the same key and the same client
// request id are tries of one request.
type identity struct {
	key string
	id  uuid.UUID
}

// identityOf returns the identity of the first client id that is a UUID in its canonical
// form, in any letter case. Without one the request gets an identity of its own.
func identityOf(key string, clientIDs ...string) identity {
	for _, s := range clientIDs {
		if len(s) != len("xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx") {
			continue
		}
		if id, err := uuid.Parse(s); err == nil {
			return identity{key: key, id: id}
		}
	}
	return identity{key: key, id: uuid.New()}
}

// model is the state of a model that has waiters, a need or a recent failed wake.
type model struct {
	m          *Machine
	name       string
	held       int              // waiters of Hold without a slot
	byKey      map[string]int   // the same waiters by key
	identities map[identity]int // the same waiters by request

	wantedUntil time.Time   // until when it is wanted without a waiting request
	want        uint64      // the number of that want
	wantEnd     *time.Timer // fires at wantedUntil
	reported    target.Need // the need at the last call of OnWanted

	failedUntil time.Time
	failure     string
	wake        wake
}

// model returns the model with a name. It adds one if there is none.
func (m *Machine) model(name string) *model {
	mod := m.models[name]
	if mod == nil {
		mod = &model{m: m, name: name, byKey: map[string]int{}, identities: map[identity]int{}}
		m.models[name] = mod
	}
	return mod
}

// Demand returns the number of distinct requests that wait for the model: held, or
// released without a slot.
func (m *Machine) Demand(name string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if mod := m.models[name]; mod != nil {
		return len(mod.identities)
	}
	return 0
}

// Need returns why the model should be up: requests wait for it, a request left unserved
// less than Options.Linger ago, or Want asked for it.
func (m *Machine) Need(name string) target.Need {
	m.mu.Lock()
	defer m.mu.Unlock()
	if mod := m.models[name]; mod != nil {
		return mod.need(time.Now())
	}
	return target.Need{}
}

// Wanted reports whether the model should be up.
func (m *Machine) Wanted(name string) bool { return m.Need(name).Wanted() }

// Want makes the model wanted for at least d from now.
func (m *Machine) Want(name string, d time.Duration) {
	m.change(func() {
		mod := m.model(name)
		mod.wantFor(d)
		mod.report()
	})
}

func (mod *model) need(now time.Time) target.Need {
	n := target.Need{Demand: len(mod.identities) > 0}
	if now.Before(mod.wantedUntil) {
		n.Ahead = mod.want
	}
	return n
}

// join starts counting a waiter against the limits and in the demand.
func (mod *model) join(w *Waiter) {
	w.placed = true
	mod.m.held++
	mod.held++
	if w.request.Key != "" {
		mod.byKey[w.request.Key]++
	}
	mod.identities[w.id]++
	mod.startWake(w)
	mod.report()
}

// leave stops counting a waiter. If it leaves unserved, the model stays wanted for
// Options.Linger.
func (mod *model) leave(w *Waiter) {
	w.placed = false
	mod.m.held--
	mod.held--
	decrement(mod.byKey, w.request.Key)
	decrement(mod.identities, w.id)
	if w.outcome == OutcomeDisconnected || w.outcome == OutcomeExpired {
		mod.wantFor(mod.m.o.Linger)
	}
	mod.report()
}

func decrement[K comparable](counts map[K]int, k K) {
	if counts[k] > 1 {
		counts[k]--
	} else {
		delete(counts, k)
	}
}

// report calls OnWanted if the need has changed, and deletes a model without need and
// recent failure.
func (mod *model) report() {
	m, now := mod.m, time.Now()
	need := mod.need(now)
	if need != mod.reported {
		mod.reported = need
		m.after = append(m.after, func() { m.o.OnWanted(mod.name) })
	}
	if need.Wanted() {
		return
	}
	mod.stopWake()
	if now.Before(mod.failedUntil) {
		return
	}
	// The caller may be a late timer of a model that was deleted and added again.
	if m.models[mod.name] == mod {
		delete(m.models, mod.name)
	}
}

// wantFor makes the model wanted for at least d, and calls report when that ends. The caller
// must call report for the beginning.
func (mod *model) wantFor(d time.Duration) {
	until := time.Now().Add(d)
	if d <= 0 || !until.After(mod.wantedUntil) {
		return
	}
	mod.m.wants++
	mod.wantedUntil, mod.want = until, mod.m.wants
	if mod.wantEnd != nil {
		mod.wantEnd.Stop()
	}
	mod.wantEnd = mod.reportIn(d)
}

// reportIn calls report after d.
func (mod *model) reportIn(d time.Duration) *time.Timer {
	return time.AfterFunc(d, func() { mod.m.change(mod.report) })
}
