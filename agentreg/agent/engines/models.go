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

// modelList is where an engine lists its models.
type modelList struct {
	path  string
	parse func(text []byte) ([]Offer, error)
}

// Offer is a model that an engine has, and the kinds that the engine serves it by.
type Offer struct {
	Model string
	Kinds []target.Kind // nil: the engine does not list them
}

// capabilities are the names that engines have for the kinds.
var capabilities = map[string]target.Kind{
	"completion": target.Chat,
	"embed":      target.Embedding,
	"embedding":  target.Embedding,
	"rerank":     target.Rerank,
	"reranker":   target.Rerank,
}

// newOffer reads the capabilities that an engine lists; nil: it lists none.
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

// parseModels reads OpenAI's list, in which Infinity lists capabilities.
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

// parseTags reads Ollama's list. Older versions list no capabilities.
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

// parseInfo reads TEI's information about its one model, whose type is an object with
// one name: embedding, reranker or classifier.
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

// Models returns the first list of models that the engine gives.
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

// Choose returns the models that have one of the wanted kinds, or may have it, and these
// kinds. Without wanted kinds it takes the engine's usual one, or those of the first
// model where no model has that.
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
