// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"time"

	"github.com/holdgate/holdgate/agentreg/agent/engines"
)

// sampleEvery is how often a serving engine is asked how busy it is, and how
// long it may take to answer.
const sampleEvery = 2 * time.Second

// sample keeps what core has of how busy the engine is up to date, until ctx ends. It
// has a goroutine of its own: an engine that is slow to answer delays nothing else.
func (a *agent) sample(ctx context.Context) {
	if !a.cfg.engine().HasSignals() {
		return
	}
	defer a.core.setSignals(engines.Signals{})
	for {
		a.core.setSignals(a.askSignals(ctx))
		if !pause(ctx, sampleEvery) {
			return
		}
	}
}

// askSignals asks the engine how busy it is. It returns none when it does not answer.
func (a *agent) askSignals(ctx context.Context) engines.Signals {
	ctx, cancel := context.WithTimeout(ctx, sampleEvery)
	defer cancel()
	s, err := a.cfg.engine().Signals(ctx, a.api.get)
	if err != nil {
		a.log.Debug().Err(err).Msg("the engine's signals cannot be read")
	}
	return s
}
