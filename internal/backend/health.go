// SPDX-License-Identifier: Apache-2.0

package backend

import "sync"

// health is the state of a backend by its health checks since it was last wanted.
type health struct {
	mu      sync.Mutex
	running bool // a check runs
	known   bool // a check has ended
	down    bool // the last check failed
	then    []func()
}

// begin records the start of a check.
func (h *health) begin() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running = true
}

// end records the result of a check, and reports whether it differs from the last one.
func (h *health) end(err error) (changed bool) {
	h.mu.Lock()
	changed = h.down != (err != nil)
	h.running, h.known, h.down = false, true, err != nil
	then := h.then
	h.then = nil
	h.mu.Unlock()
	if err != nil {
		for _, f := range then {
			f()
		}
	}
	return changed
}

// reset is for a backend that is no longer wanted. It reports whether it had failed.
func (h *health) reset() (changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	changed = h.down
	h.running, h.known, h.down, h.then = false, false, false, nil
	return changed
}

func (h *health) failed() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.down
}

// unlessUp calls f when the running check, or the first one, fails, and at once if the
// last one failed. It does not call f if that check succeeds.
func (h *health) unlessUp(f func()) {
	h.mu.Lock()
	switch {
	case h.running || !h.known:
		h.then = append(h.then, f)
		h.mu.Unlock()
	case h.down:
		h.mu.Unlock()
		f()
	default:
		h.mu.Unlock()
	}
}
