// SPDX-License-Identifier: Apache-2.0

package holdstate

import (
	"time"

	"github.com/google/uuid"

	"github.com/holdgate/holdgate/internal/target"
)

// identity is who a waiter counts as in the demand: the same key and the same
// client request id are one request that is tried again.
type identity struct {
	key string
	id  uuid.UUID
}

// identityOf reads the client's id in any letter case. Anything but a UUID in its
// canonical form counts on its own, so it gets an id of its own.
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

// Demand is the number of distinct requests that wait for the model: held, or
// released without a slot.
func (m *Machine) Demand(name string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if mod := m.models[name]; mod != nil {
		return len(mod.identities)
	}
	return 0
}

// Need says why the model should be up: requests wait for it, or did so less than the
// linger ago, or Want asked for it.
func (m *Machine) Need(name string) target.Need {
	m.mu.Lock()
	defer m.mu.Unlock()
	if mod := m.models[name]; mod != nil {
		return mod.need(time.Now())
	}
	return target.Need{}
}

// Wanted says whether the model should be up.
func (m *Machine) Wanted(name string) bool { return m.Need(name).Wanted() }

// Want keeps the model wanted for at least d from now.
func (m *Machine) Want(name string, d time.Duration) {
	m.change(func() {
		mod := m.model(name)
		m.lingerFor(mod, d)
		m.tell(mod)
	})
}

func (mod *model) need(now time.Time) target.Need {
	w := target.Need{Demand: len(mod.identities) > 0}
	if now.Before(mod.wantedUntil) {
		w.Ahead = mod.ahead
	}
	return w
}

// tell reports a changed wish and forgets a model nothing is known of any more.
func (m *Machine) tell(mod *model) {
	now := time.Now()
	wish := mod.need(now)
	if wish != mod.told {
		mod.told = wish
		m.after = append(m.after, func() { m.o.OnWanted(mod.name) })
	}
	if wish.Wanted() {
		return
	}
	m.giveUp(mod)
	if now.Before(mod.failedUntil) {
		return
	}
	// A timer that fires late may come with a mod whose name has begun anew.
	if m.models[mod.name] == mod {
		delete(m.models, mod.name)
	}
}

// lingerFor extends the wish and makes sure that its end is told. The caller
// tells its begin.
func (m *Machine) lingerFor(mod *model, d time.Duration) {
	until := time.Now().Add(d)
	if d <= 0 || !until.After(mod.wantedUntil) {
		return
	}
	m.wishes++
	mod.wantedUntil, mod.ahead = until, m.wishes
	if mod.linger != nil {
		mod.linger.Stop()
	}
	mod.linger = m.lookAgain(mod, d)
}

// lookAgain looks at mod when something known of it ends by itself.
func (m *Machine) lookAgain(mod *model, d time.Duration) *time.Timer {
	return time.AfterFunc(d, func() {
		m.change(func() { m.tell(mod) })
	})
}

func (m *Machine) model(name string) *model {
	mod := m.models[name]
	if mod == nil {
		mod = &model{name: name, byKey: map[string]int{}, identities: map[identity]int{}}
		m.models[name] = mod
	}
	return mod
}
