// SPDX-License-Identifier: Apache-2.0

package up

import (
	"cmp"
	"maps"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/holdgate/holdgate/agentreg/agent"
	"github.com/holdgate/holdgate/agentreg/protocol"
	"github.com/holdgate/holdgate/internal/settings"
)

// group is models that cannot all be awake at once, by their number or by their
// memory.
type group struct {
	value

	maxAwake int
	memory   int64
	used     bool
}

// ask is what a model says about its group.
type ask struct {
	value

	model    int // its index
	group    string
	maxAwake int
	memory   int64
}

func (f *file) group(key *yaml.Node, v value) {
	v.At(key).CheckName(key.Value)
	g := &group{value: v}
	v.Fields(map[string]func(value){
		"max_awake": func(v value) { g.maxAwake = int(v.Number(protocol.MaxSlots)) },
		"memory":    func(v value) { g.memory = size(v) },
	})
	if g.maxAwake > 0 && g.memory > 0 {
		v.Add("has max_awake and memory: only one of them can be given")
	}
	f.groups[key.Value] = g
}

// checkGroups puts every model into its group, once all of them are known.
func (f *file) checkGroups() {
	for _, a := range f.asks {
		if a.group == "" {
			if a.maxAwake > 0 || a.memory > 0 {
				a.Add("has max_awake or memory, and no group")
			}
			continue
		}
		if f.groups[a.group] == nil {
			f.groups[a.group] = &group{value: a.value}
		}
		g := f.groups[a.group]
		g.used = true
		if a.maxAwake > 0 && g.maxAwake > 0 && a.maxAwake != g.maxAwake || a.maxAwake > 0 && g.memory > 0 {
			a.Add("max_awake is %d, and line %d says something else for group %s", a.maxAwake, g.Line, a.group)
		}
		g.maxAwake = cmp.Or(g.maxAwake, a.maxAwake)
	}
	for _, a := range f.asks {
		if g := f.groups[a.group]; g != nil {
			a.checkMemory(g)
			f.Models[a.model].Group = agent.Group{Name: a.group, MaxAwake: g.maxAwake, TotalMemory: g.memory, Memory: a.memory}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.groups)) {
		if g := f.groups[name]; !g.used {
			g.Add("no model has group: %s", name)
		}
	}
}

func (a ask) checkMemory(g *group) {
	switch {
	case g.memory == 0 && a.memory > 0:
		a.Add("has memory, but group %s counts its models: give groups.%s.memory instead of max_awake", a.group, a.group)
	case g.memory > 0 && a.memory == 0:
		a.Add("needs memory: what the model takes of the %v of group %s", settings.Bytes(g.memory), a.group)
	case a.memory > g.memory:
		a.Add("takes %v of memory, more than the %v of group %s", settings.Bytes(a.memory), settings.Bytes(g.memory), a.group)
	}
}
