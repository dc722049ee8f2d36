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

// group is a group of models that cannot all be awake at once. Their number or their memory
// is limited.
type group struct {
	value

	maxAwake int
	memory   int64
	used     bool
}

// member is a model that is in a group, with its place in the file.
type member struct {
	value

	model *Model
}

func (f *file) group(key *yaml.Node, v value) {
	v.At(key).CheckName(key.Value)
	g := &group{value: v}
	v.Fields(map[string]func(value){
		"max_awake": func(v value) { g.maxAwake = int(v.Number(protocol.MaxSlots)) },
		"memory":    func(v value) { g.memory = v.Size(protocol.MaxRoom) },
	})
	if g.maxAwake > 0 && g.memory > 0 {
		v.Add("has max_awake and memory: only one of them can be given")
	}
	f.groups[key.Value] = g
}

// checkGroups completes the group of every model, once all of them are read.
func (f *file) checkGroups() {
	var members []member
	for i, v := range f.modelValues {
		m := member{v, &f.Models[i]}
		name, own := m.model.Group.Name, m.model.Group
		if name == "" {
			if own.MaxAwake > 0 || own.Memory > 0 {
				m.Add("has max_awake or memory, and no group")
			}
			m.model.Group = agent.Group{}
			continue
		}
		members = append(members, m)
		if f.groups[name] == nil {
			f.groups[name] = &group{value: v}
		}
		g := f.groups[name]
		g.used = true
		if own.MaxAwake > 0 && g.maxAwake > 0 && own.MaxAwake != g.maxAwake || own.MaxAwake > 0 && g.memory > 0 {
			m.Add("max_awake is %d, and line %d says something else for group %s", own.MaxAwake, g.Line, name)
		}
		g.maxAwake = cmp.Or(g.maxAwake, own.MaxAwake)
	}
	for _, m := range members {
		own := &m.model.Group
		g := f.groups[own.Name]
		m.checkMemory(own, g.memory)
		own.MaxAwake, own.TotalMemory = g.maxAwake, g.memory
	}
	for _, name := range slices.Sorted(maps.Keys(f.groups)) {
		if g := f.groups[name]; !g.used {
			g.Add("no model has group: %s", name)
		}
	}
}

// checkMemory checks the memory of a model against the total of its group.
func (m member) checkMemory(own *agent.Group, total int64) {
	switch {
	case total == 0 && own.Memory > 0:
		m.Add("has memory, but group %s counts its models: give groups.%s.memory instead of max_awake", own.Name, own.Name)
	case total > 0 && own.Memory == 0:
		m.Add("needs memory: what the model takes of the %v of group %s", settings.Bytes(total), own.Name)
	case own.Memory > total:
		m.Add("takes %v of memory, more than the %v of group %s", settings.Bytes(own.Memory), settings.Bytes(total), own.Name)
	}
}
