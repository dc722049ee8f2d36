// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"time"

	"github.com/holdgate/holdgate/agentreg/agent/engines"
)

// sampleEvery is the pause between two readings of a serving engine's signals, and the
// timeout of each.
const sampleEvery = 2 * time.Second

// watchSignals stores the engine's signals in core again and again until ctx ends. It runs in its
// own goroutine, so that a slow engine delays nothing else.
func (a *agent) watchSignals(ctx context.Context) {
	if !a.cfg.engine().HasSignals() {
		return
	}
	defer a.core.setSignals(engines.Signals{})
	for {
		a.core.setSignals(a.readSignals(ctx))
		if !pause(ctx, sampleEvery) {
			return
		}
	}
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
