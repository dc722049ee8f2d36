// SPDX-License-Identifier: Apache-2.0

package holdstate

import (
	"crypto/sha256"
	"encoding/binary"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"

	"github.com/holdgate/holdgate/internal/target"
)

// identity identifies a request in the demand: waiters with the same key and the same client
// request id are tries of one request. It is a hash of both, the same in every process.
type identity uint64

// identityOf returns the identity of the first client id that is a UUID in its canonical
// form, in any letter case. Without one the request gets an identity of its own.
func identityOf(key string, clientIDs ...string) identity {
	for _, s := range clientIDs {
		if len(s) != len("xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx") {
			continue
		}
		if id, err := uuid.Parse(s); err == nil {
			sum := sha256.Sum256(append(id[:], key...))
			return identity(binary.LittleEndian.Uint64(sum[:]))
		}
	}
	return identity(rand.Uint64()) //nolint:gosec // it tells requests apart and keeps no secret
}

// standing is where the tries of one request stand.
type standing struct {
	tries int
	place uint64 // of the first of them
}

// model is the state of a model that has waiters, a need or a recent failed wake.
type model struct {
	m          *Machine
	name       string
	held       int                   // waiters of Hold without a slot
	byKey      map[string]int        // the same waiters by key
	identities map[identity]standing // the same waiters by request
	moved      bool                  // Level has changed since the last report

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
		mod = &model{m: m, name: name, byKey: map[string]int{}, identities: map[identity]standing{}}
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
	mod.addTry(w)
	if site := w.request.SiteHold; site != nil {
		site.Join()
	}
	mod.startWake(w)
	mod.report()
}

// leave stops counting a waiter. If it leaves unserved, the model stays wanted for
// Options.Linger, since its client may try again, here or at another router.
func (mod *model) leave(w *Waiter) {
	w.placed = false
	mod.m.held--
	mod.held--
	decrement(mod.byKey, w.request.Key)
	mod.removeTry(w)
	if site := w.request.SiteHold; site != nil {
		site.Leave()
	}
	switch w.outcome { //nolint:exhaustive // after the others no try is expected
	case OutcomeDisconnected, OutcomeExpired, OutcomeDraining:
		mod.wantFor(mod.m.o.Linger)
	}
	mod.report()
}

// addTry adds a waiter to the tries of its request.
func (mod *model) addTry(w *Waiter) {
	s, waits := mod.identities[w.id]
	if !waits || w.seq < s.place {
		s.place, mod.moved = w.seq, true
	}
	s.tries++
	mod.identities[w.id] = s
}

// removeTry removes a waiter from the tries of its request.
func (mod *model) removeTry(w *Waiter) {
	s := mod.identities[w.id]
	if s.tries--; s.tries > 0 {
		mod.identities[w.id] = s
		return
	}
	delete(mod.identities, w.id)
	mod.moved = true
	if onLeft := mod.m.o.OnLeft; onLeft != nil && (w.outcome == OutcomeDisconnected || w.outcome == OutcomeDraining) {
		left := Standing{Identity: uint64(w.id), Place: s.place}
		mod.m.after = append(mod.m.after, func() { onLeft(mod.name, left) })
	}
}

func decrement(counts map[string]int, k string) {
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
	if (mod.moved || need != mod.reported) && m.o.OnLevel != nil {
		m.after = append(m.after, func() { m.o.OnLevel(mod.name) })
	}
	mod.moved = false
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
	mod.wantedUntil, mod.want, mod.moved = until, mod.m.wants, true
	if mod.wantEnd != nil {
		mod.wantEnd.Stop()
	}
	mod.wantEnd = mod.reportIn(d)
}

// reportIn calls report after d.
func (mod *model) reportIn(d time.Duration) *time.Timer {
	return time.AfterFunc(d, func() { mod.m.change(mod.report) })
}
