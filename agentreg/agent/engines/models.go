// SPDX-License-Identifier: Apache-2.0

package engines

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

// modelList is an endpoint that lists models.
type modelList struct {
	path  string
	parse func(text []byte) ([]Offer, error)
}

// Offer is a model that an engine lists, with the kinds that it can be used for.
type Offer struct {
	Model string
	Kinds []target.Kind // nil: the engine does not list them
}

// capabilities maps the engines' names of capabilities to kinds.
var capabilities = map[string]target.Kind{
	"completion": target.Chat,
	"embed":      target.Embedding,
	"embedding":  target.Embedding,
	"rerank":     target.Rerank,
	"reranker":   target.Rerank,
}

// newOffer returns the Offer for a model with these capabilities; nil: the engine does not
// list capabilities.
func newOffer(model string, names []string) Offer {
	o := Offer{Model: model}
	if names == nil {
		return o
	}
	o.Kinds = []target.Kind{}
	for _, name := range names {
		if k, ok := capabilities[name]; ok && !slices.Contains(o.Kinds, k) {
			o.Kinds = append(o.Kinds, k)
		}
	}
	return o
}

// parseModels parses OpenAI's list of models. Infinity adds capabilities to it.
func parseModels(text []byte) ([]Offer, error) {
	var list struct {
		Data []struct {
			ID           string   `json:"id"`
			Capabilities []string `json:"capabilities"`
		} `json:"data"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, err
	}
	var offers []Offer
	for _, m := range list.Data {
		offers = append(offers, newOffer(m.ID, m.Capabilities))
	}
	return offers, nil
}

// parseTags parses Ollama's list of models. Older versions list no capabilities.
func parseTags(text []byte) ([]Offer, error) {
	var list struct {
		Models []struct {
			Name         string   `json:"name"`
			Capabilities []string `json:"capabilities"`
		} `json:"models"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, err
	}
	var offers []Offer
	for _, m := range list.Models {
		offers = append(offers, newOffer(m.Name, m.Capabilities))
	}
	return offers, nil
}

// parseInfo parses TEI's information about its only model. The model's type is an object with
// one member: embedding, reranker or classifier.
func parseInfo(text []byte) ([]Offer, error) {
	var info struct {
		ModelID   string                    `json:"model_id"`
		ModelType map[string]jsontext.Value `json:"model_type"`
	}
	if err := json.Unmarshal(text, &info); err != nil {
		return nil, err
	}
	names := []string{}
	for name := range info.ModelType {
		names = append(names, name)
	}
	return []Offer{newOffer(info.ModelID, names)}, nil
}

// Models returns the models of the first endpoint that answers.
func (e Engine) Models(ctx context.Context, get Get) ([]Offer, error) {
	var errs []error
	for _, l := range e.models {
		text, err := get(ctx, l.path)
		if err == nil {
			var offers []Offer
			if offers, err = l.parse(text); err == nil {
				return offers, nil
			}
			err = fmt.Errorf("reading %s: %w", l.path, err)
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// Choose returns the models that have one of the wanted kinds or do not list their kinds,
// and the wanted kinds. Without wanted kinds it uses the engine's usual kind, or the kinds of
// the first model if no model has the usual one.
func (e Engine) Choose(offers []Offer, wanted []target.Kind) (models []string, kinds []target.Kind) {
	fits := func(o Offer) bool {
		return o.Kinds == nil || slices.ContainsFunc(o.Kinds, func(k target.Kind) bool { return slices.Contains(wanted, k) })
	}
	if len(wanted) == 0 {
		wanted = e.Kinds[:1:1]
		if len(offers) > 0 && !slices.ContainsFunc(offers, fits) {
			wanted = offers[0].Kinds
		}
	}
	for _, o := range offers {
		if fits(o) && protocol.CheckName(o.Model) == nil && !slices.Contains(models, o.Model) && len(models) < protocol.MaxModels {
			models = append(models, o.Model)
		}
	}
	return models, wanted
}
