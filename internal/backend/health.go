// SPDX-License-Identifier: Apache-2.0

package backend

import "sync"

// health is the result of a backend's health checks since it was last idle.
type health struct {
	mu        sync.Mutex
	running   bool // a check runs
	known     bool // a check has ended
	down      bool // the last check failed
	onFailure []func()
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
	then := h.onFailure
	h.onFailure = nil
	h.mu.Unlock()
	if err != nil {
		for _, f := range then {
			f()
		}
	}
	return changed
}

// reset forgets all checks, since the backend is no longer checked. It reports whether the
// last one had failed.
func (h *health) reset() (changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	changed = h.down
	h.running, h.known, h.down, h.onFailure = false, false, false, nil
	return changed
}

func (h *health) failed() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.down
}

// unlessUp calls f if the backend's check fails: at once if no check is running and the last
// one failed, or after the running check or, if there has been none, the first one.
func (h *health) unlessUp(f func()) {
	h.mu.Lock()
	switch {
	case h.running || !h.known:
		h.onFailure = append(h.onFailure, f)
		h.mu.Unlock()
	case h.down:
		h.mu.Unlock()
		f()
	default:
		h.mu.Unlock()
	}
}
