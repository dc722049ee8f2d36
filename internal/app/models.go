// SPDX-License-Identifier: Apache-2.0

package app

import (
	"encoding/json/v2"

	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/extproc"
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

// Models is the body of GET /v1/models, or of one model; nil when it is unknown. It
// has only what the caller may use.
func (d *decider) Models(c extproc.Caller, model string) []byte {
	who, known := c.Detail.(*caller)
	list := modelList{Object: "list", Data: []modelEntry{}}
	for _, one := range d.models() {
		if !known || !who.key.Allowed(one.Model) {
			continue
		}
		e := modelEntry{ID: one.Model, Object: "model", OwnedBy: "holdgate", State: one.state}
		if one.Model == model {
			return mustMarshal(e)
		}
		list.Data = append(list.Data, e)
	}
	if model != "" {
		return nil
	}
	return mustMarshal(list)
}

// modelView is a model as this site sees it.
type modelView struct {
	agentreg.ModelState

	state  string
	wanted bool
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
		v := modelView{ModelState: agents[name], state: "asleep", wanted: d.machine.Wanted(name)}
		v.Model = name
		switch {
		case v.Serving > 0:
			v.state = "warm"
		case v.Waking || v.wanted:
			v.state = "waking"
		case v.Asleep == 0 && !p.placed(name):
			v.state = "elsewhere"
		}
		list = append(list, v)
	}
	return list
}

// mustMarshal writes values whose text was checked to be UTF-8 when it came in.
func mustMarshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		return []byte("{}")
	}
	return b
}
