// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"
	"time"

	"github.com/holdgate/holdgate/internal/admin"
)

// wakeModel keeps a model wanted for span, as if a request waited for it.
func (a *App) wakeModel(model string, span time.Duration) error {
	if !a.isKnown(model) {
		return fmt.Errorf("%w: %s", admin.ErrUnknownModel, model)
	}
	a.log.Info().Str("model", model).Stringer("for", span).Msg("wanted ahead of traffic")
	a.machine.Want(model, span)
	return nil
}

// wakeFailed ends the model's waiters with a reason.
func (a *App) wakeFailed(model, reason string) error {
	if !a.isKnown(model) {
		return fmt.Errorf("%w: %s", admin.ErrUnknownModel, model)
	}
	a.log.Warn().Str("model", model).Str("reason", reason).Msg("the wake was reported failed")
	a.wakeHasFailed(model, reason)
	return nil
}

// look notes the state of a model, for the events.
func (a *App) look(model string) {
	if m, known := a.decider.Find(model); known {
		a.states.Saw(m.Model, m.State)
	} else {
		a.states.Gone(model)
	}
}

// isKnown reports whether requests for the model may be held here, or an agent offers it.
func (a *App) isKnown(model string) bool {
	_, offered := a.registry.Model(model)
	return offered || a.placements().Holds(model)
}
