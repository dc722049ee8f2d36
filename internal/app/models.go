// SPDX-License-Identifier: Apache-2.0

package app

import (
	"encoding/json/v2"

	"github.com/holdgate/holdgate/agentreg"
)

// modelEntry is a model as OpenAI's models API lists it, with its state.
type modelEntry struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
	State   string `json:"state"`
}

type modelList struct {
	Object string       `json:"object"`
	Data   []modelEntry `json:"data"`
}

// modelsFor is the body of GET /v1/models, or of one model; nil when it is unknown. It
// has only those that the caller may use.
func (d *decider) modelsFor(model string, allowed func(model string) bool) []byte {
	if model != "" {
		if v, found := d.model(model); found && allowed(model) {
			return mustMarshal(v.entry())
		}
		return nil
	}
	list := modelList{Object: "list", Data: []modelEntry{}}
	for _, one := range d.models() {
		if allowed(one.Model) {
			list.Data = append(list.Data, one.entry())
		}
	}
	return mustMarshal(list)
}

// modelView is a model as this site sees it.
type modelView struct {
	agentreg.ModelState

	state  string
	wanted bool
}

func (v modelView) entry() modelEntry {
	return modelEntry{ID: v.Model, Object: "model", OwnedBy: "holdgate", State: v.state}
}

// models lists the models that are placed anywhere or have an agent here, by name.
func (d *decider) models() []modelView {
	agents := map[string]agentreg.ModelState{}
	names := []string{}
	for _, s := range d.registry.Models() {
		agents[s.Model] = s
		names = append(names, s.Model)
	}
	p := d.placements()
	list := []modelView{}
	for _, name := range sortedNames(append(names, p.models()...)) {
		s := agents[name]
		s.Model = name
		list = append(list, d.view(p, s))
	}
	return list
}

// model is one model of models.
func (d *decider) model(name string) (v modelView, found bool) {
	p := d.placements()
	s, offered := d.registry.Model(name)
	if !offered && !p.has(name) {
		return modelView{}, false
	}
	return d.view(p, s), true
}

// known says whether a name is in the map, the registry, the backends or the policy file.
func (d *decider) known(model string) bool {
	_, offered := d.registry.Model(model)
	return offered || d.placements().has(model) || d.policies().Model(model) != nil
}

func (d *decider) view(p placements, s agentreg.ModelState) modelView {
	v := modelView{ModelState: s, state: "asleep", wanted: d.machine.Wanted(s.Model)}
	switch {
	case v.Serving > 0:
		v.state = "warm"
	case v.Waking || v.wanted:
		v.state = "waking"
	case v.Asleep == 0 && !p.placed(s.Model):
		v.state = "elsewhere"
	}
	return v
}

// mustMarshal writes values whose text was checked to be UTF-8 when it came in.
func mustMarshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		return []byte("{}")
	}
	return b
}
