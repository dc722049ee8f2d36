// SPDX-License-Identifier: Apache-2.0

package agent

import "sync"

// formers are the ids of routers that other routers have replaced, to which there are links.
type formers struct {
	mu  sync.Mutex
	ids map[string]bool
}

// add adds an id, and reports whether it was missing.
func (f *formers) add(id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ids[id] {
		return false
	}
	if f.ids == nil {
		f.ids = map[string]bool{}
	}
	f.ids[id] = true
	return true
}

func (f *formers) remove(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.ids, id)
}
