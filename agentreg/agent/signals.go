// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"time"

	"github.com/holdgate/holdgate/agentreg/agent/divide"
	"github.com/holdgate/holdgate/agentreg/agent/engines"
)

// sampleEvery is the pause between two readings of a serving engine's signals, and the
// timeout of each. While slots are frozen it is divide.LookEvery.
const sampleEvery = 2 * time.Second

// watchSignals stores the engine's signals in core again and again until ctx ends. It runs in its
// own goroutine, so that a slow engine delays nothing else.
func (a *agent) watchSignals(ctx context.Context) {
	if !a.cfg.engine().HasSignals() {
		return
	}
	defer func() { a.core.setSignals(engines.Signals{}, time.Now()) }()
	for {
		began := time.Now()
		a.core.setSignals(a.readSignals(ctx), began)
		if !a.awaitNextReading(ctx) {
			return
		}
	}
}

// freezeRunning freezes slots for the requests that a running engine has when the agent starts,
// if the agent has several routers.
func (a *agent) freezeRunning(ctx context.Context) {
	if len(a.cfg.Routers) < 2 || !a.cfg.engine().HasSignals() {
		return
	}
	if n := a.readSignals(ctx).InFlight(); n != nil && *n > 0 {
		a.core.freeze(int(*n))
	}
}

// awaitNextReading waits until the engine's signals must be read again; if slots are frozen, it
// asks the routers meanwhile what they have. It returns false if ctx ends first.
func (a *agent) awaitNextReading(ctx context.Context) bool {
	if a.core.slotsFrozen() {
		if !pause(ctx, divide.LookEvery/2) {
			return false
		}
		a.core.askForUsage()
		return pause(ctx, divide.LookEvery/2)
	}
	timer := time.NewTimer(sampleEvery)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-a.core.frozen:
	}
	return true
}

// readSignals returns how busy the engine is; the fields are nil if it does not answer.
func (a *agent) readSignals(ctx context.Context) engines.Signals {
	ctx, cancel := context.WithTimeout(ctx, sampleEvery)
	defer cancel()
	s, err := a.cfg.engine().Signals(ctx, a.api.get)
	if err != nil {
		a.log.Debug().Err(err).Msg("the engine's signals cannot be read")
	}
	return s
}
