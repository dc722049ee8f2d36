// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"fmt"
	"slices"

	"github.com/holdgate/holdgate/agentreg/protocol"
	"github.com/holdgate/holdgate/internal/target"
)

// listing is where an engine names its models.
type listing struct {
	path  string
	parse func(text []byte) ([]offer, error)
}

// offer is a model that an engine has, and what it can do with it.
type offer struct {
	model string
	kinds []target.Kind // nil: the engine does not say
}

// capabilities are the words of the engines for the kinds.
var capabilities = map[string]target.Kind{
	"completion": target.Chat,
	"embed":      target.Embedding,
	"embedding":  target.Embedding,
	"rerank":     target.Rerank,
	"reranker":   target.Rerank,
}

// newOffer reads an engine's words; nil stands for none.
func newOffer(model string, words []string) offer {
	o := offer{model: model}
	if words == nil {
		return o
	}
	o.kinds = []target.Kind{}
	for _, w := range words {
		if k, ok := capabilities[w]; ok && !slices.Contains(o.kinds, k) {
			o.kinds = append(o.kinds, k)
		}
	}
	return o
}

// parseModels reads OpenAI's list, in which Infinity tells capabilities.
func parseModels(text []byte) ([]offer, error) {
	var list struct {
		Data []struct {
			ID           string   `json:"id"`
			Capabilities []string `json:"capabilities"`
		} `json:"data"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, err
	}
	var offers []offer
	for _, m := range list.Data {
		offers = append(offers, newOffer(m.ID, m.Capabilities))
	}
	return offers, nil
}

// parseTags reads Ollama's list. Older versions tell no capabilities.
func parseTags(text []byte) ([]offer, error) {
	var list struct {
		Models []struct {
			Name         string   `json:"name"`
			Capabilities []string `json:"capabilities"`
		} `json:"models"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, err
	}
	var offers []offer
	for _, m := range list.Models {
		offers = append(offers, newOffer(m.Name, m.Capabilities))
	}
	return offers, nil
}

// parseInfo reads what TEI says of its one model. Its type is an object whose
// only name is embedding, reranker or classifier.
func parseInfo(text []byte) ([]offer, error) {
	var info struct {
		ModelID   string                    `json:"model_id"`
		ModelType map[string]jsontext.Value `json:"model_type"`
	}
	if err := json.Unmarshal(text, &info); err != nil {
		return nil, err
	}
	words := []string{}
	for w := range info.ModelType {
		words = append(words, w)
	}
	return []offer{newOffer(info.ModelID, words)}, nil
}

// discover asks the engine for its models, unless they are given.
func (a *agent) discover(ctx context.Context) error {
	if len(a.cfg.Models) > 0 {
		return nil
	}
	offers, err := a.offers(ctx)
	if err != nil {
		return fmt.Errorf("asking for the models: %w", err)
	}
	models, kinds := choose(offers, a.cfg.kinds(), engines[a.cfg.Engine].kinds[0])
	if len(models) == 0 {
		return errors.New("asking for the models: the engine has none that fits: name them with --model, those of a backend with models")
	}
	a.cfg.Models, a.cfg.Kinds = models, nil
	for _, k := range kinds {
		a.cfg.Kinds = append(a.cfg.Kinds, k.String())
	}
	a.core.adopt(a.cfg.Models, a.cfg.Kinds)
	a.log.Info().Strs("models", a.cfg.Models).Strs("kinds", a.cfg.Kinds).Int("of", len(offers)).Msg("the engine named its models")
	return nil
}

// listsModels asks whether the engine has every model that it is registered for.
func (a *agent) listsModels(ctx context.Context) error {
	offers, err := a.offers(ctx)
	if err != nil {
		return fmt.Errorf("asking for the models: %w", err)
	}
	for _, model := range a.cfg.Models {
		if !slices.ContainsFunc(offers, func(o offer) bool { return o.model == model }) {
			return fmt.Errorf("asking for the models: %s is not in the list of %d", model, len(offers))
		}
	}
	return nil
}

// offers is the first list that the engine gives.
func (a *agent) offers(ctx context.Context) ([]offer, error) {
	var errs []error
	for _, l := range engines[a.cfg.Engine].lists {
		ctx, cancel := context.WithTimeout(ctx, checkTimeout)
		text, err := a.api.get(ctx, l.path)
		cancel()
		if err == nil {
			var offers []offer
			if offers, err = l.parse(text); err == nil {
				return offers, nil
			}
			err = fmt.Errorf("reading %s: %w", l.path, err)
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// choose gives the models that have one of the kinds that are wished for, or
// may have it. Without a wish it is the usual kind, or what the first model has
// where no model has that.
func choose(offers []offer, wish []target.Kind, usual target.Kind) (models []string, kinds []target.Kind) {
	fits := func(o offer) bool {
		return o.kinds == nil || slices.ContainsFunc(o.kinds, func(k target.Kind) bool { return slices.Contains(wish, k) })
	}
	if len(wish) == 0 {
		wish = []target.Kind{usual}
		if len(offers) > 0 && !slices.ContainsFunc(offers, fits) {
			wish = offers[0].kinds
		}
	}
	for _, o := range offers {
		if fits(o) && protocol.CheckName(o.model) == nil && !slices.Contains(models, o.model) && len(models) < protocol.MaxModels {
			models = append(models, o.model)
		}
	}
	return models, wish
}
