// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"encoding/json/v2"

	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/internal/policy"
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

// Models is part of extproc.Call. The caller of a resumed call is unknown, so no model is
// listed for it.
func (c *call) Models(model string) []byte {
	if model != "" {
		if m, found := c.d.Find(model); found && c.lists(model) {
			return mustMarshal(m.entry())
		}
		return nil
	}
	list := modelList{Object: "list", Data: []modelEntry{}}
	for _, m := range c.d.Models() {
		if c.lists(m.Model) {
			list.Data = append(list.Data, m.entry())
		}
	}
	return mustMarshal(list)
}

func (c *call) lists(model string) bool { return !c.resumed && c.key.Allowed(model) }

// Model is a model as this site sees it.
type Model struct {
	agentreg.ModelState

	State  string // warm, waking, asleep or elsewhere
	Wanted bool
	// Destination is how its requests are sent on from a gateway.
	Destination policy.Destination
}

func (m Model) entry() modelEntry {
	return modelEntry{ID: m.Model, Object: "model", OwnedBy: "holdgate", State: m.State}
}

// Models lists the models that are placed anywhere or have an agent here, by name.
func (d *Decider) Models() []Model {
	agents := map[string]agentreg.ModelState{}
	names := []string{}
	for _, s := range d.o.Registry.Models() {
		agents[s.Model] = s
		names = append(names, s.Model)
	}
	p := d.placements()
	list := []Model{}
	for _, name := range sortedNames(append(names, p.Models()...)) {
		s := agents[name]
		s.Model = name
		list = append(list, d.view(p, s))
	}
	return list
}

// Find returns one model of Models.
func (d *Decider) Find(name string) (m Model, found bool) {
	p := d.placements()
	s, offered := d.o.Registry.Model(name)
	if !offered && !p.has(name) {
		return Model{}, false
	}
	return d.view(p, s), true
}

// Known reports whether a name is in the map, the registry, the backends or the policy
// file.
func (d *Decider) Known(model string) bool {
	_, offered := d.o.Registry.Model(model)
	return offered || d.placements().has(model) || d.o.Policies().Model(model) != nil
}

func (d *Decider) view(p Placements, s agentreg.ModelState) Model {
	m := Model{ModelState: s, State: "asleep", Wanted: d.o.Machine.Wanted(s.Model), Destination: d.destination(s.Model)}
	switch {
	case m.Serving > 0:
		m.State = "warm"
	case m.Waking || m.Wanted:
		m.State = "waking"
	case m.Asleep == 0 && !p.placed(s.Model):
		m.State = "elsewhere"
	}
	return m
}

// mustMarshal encodes values whose text was checked to be UTF-8 when it was received.
func mustMarshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		return []byte("{}")
	}
	return b
}
