// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/holdgate/holdgate/agentreg/agent/engines"
	"github.com/holdgate/holdgate/agentreg/protocol"
	"github.com/holdgate/holdgate/internal/target"
)

// engine returns the properties of the configured engine.
func (c *Config) engine() engines.Engine {
	e, _ := engines.Find(c.Engine) // Validate has checked it
	return e
}

// kinds returns the parsed Kinds, without invalid names, which Validate reports.
func (c *Config) kinds() []target.Kind {
	var kinds []target.Kind
	for _, name := range c.Kinds {
		if k, err := protocol.ParseKind(name); err == nil {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

// discover sets the models to those that the engine lists, unless models are configured.
func (a *agent) discover(ctx context.Context) error {
	if len(a.cfg.Models) > 0 {
		return nil
	}
	offers, err := a.listModels(ctx)
	if err != nil {
		return fmt.Errorf("asking for the models: %w", err)
	}
	models, kinds := a.cfg.engine().Choose(offers, a.cfg.kinds())
	if len(models) == 0 {
		return errors.New("asking for the models: the engine has none that fits: name them with --model, those of a backend with models")
	}
	a.cfg.Models, a.cfg.Kinds = models, nil
	for _, k := range kinds {
		a.cfg.Kinds = append(a.cfg.Kinds, k.String())
	}
	a.core.setModels(a.cfg.Models, a.cfg.Kinds)
	a.log.Info().Strs("models", a.cfg.Models).Strs("kinds", a.cfg.Kinds).Int("of", len(offers)).Msg("the engine named its models")
	return nil
}

// checkModelsListed returns an error unless the engine lists every model that it is
// registered for.
func (a *agent) checkModelsListed(ctx context.Context) error {
	offers, err := a.listModels(ctx)
	if err != nil {
		return fmt.Errorf("asking for the models: %w", err)
	}
	for _, model := range a.cfg.Models {
		if !slices.ContainsFunc(offers, func(o engines.Offer) bool { return o.Model == model }) {
			return fmt.Errorf("asking for the models: %s is not in the list of %d", model, len(offers))
		}
	}
	return nil
}

// listModels requests the engine's list of models. Each request has checkTimeout.
func (a *agent) listModels(ctx context.Context) ([]engines.Offer, error) {
	return a.cfg.engine().Models(ctx, func(ctx context.Context, path string) ([]byte, error) {
		ctx, cancel := context.WithTimeout(ctx, checkTimeout)
		defer cancel()
		return a.api.get(ctx, path)
	})
}
