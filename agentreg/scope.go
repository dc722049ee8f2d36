// SPDX-License-Identifier: Apache-2.0

package agentreg

// scope is the set of groups and models that a change may affect. Groups that have agents
// of the same model must be planned together; other groups are independent.
type scope struct {
	registry *Registry
	groups   map[*group]struct{}
	models   map[*model]struct{}
}

func (r *Registry) newScope() scope {
	return scope{r, map[*group]struct{}{}, map[*model]struct{}{}}
}

// scope returns the groups and models that a change of the agent may affect.
func (a *registration) scope() scope {
	s := a.registry.newScope()
	for m := range a.registry.models.ofAgent(a) {
		s.addModel(m)
	}
	s.addGroup(a.group)
	return s.complete()
}

// scopeOf returns the groups and models that a change of m may affect.
func (r *Registry) scopeOf(m *model) scope {
	s := r.newScope()
	s.addModel(m)
	return s.complete()
}

// scopeOfGroup returns the groups and models that a change of g may affect.
func (r *Registry) scopeOfGroup(g *group) scope {
	s := r.newScope()
	s.addGroup(g)
	return s.complete()
}

// addGroup adds g, unless it is nil or was removed for having no members.
func (s scope) addGroup(g *group) {
	if g != nil && s.registry.groups[g.name] == g {
		s.groups[g] = struct{}{}
	}
}

// addModel adds m and the groups of its agents.
func (s scope) addModel(m *model) {
	if _, ok := s.models[m]; ok {
		return
	}
	s.models[m] = struct{}{}
	for a := range m.agents {
		if a.group != nil {
			s.groups[a.group] = struct{}{}
		}
	}
}

// complete adds the models of all agents in the groups, and the groups of these models,
// until nothing is left to add.
func (s scope) complete() scope {
	for done := map[*group]struct{}{}; len(done) < len(s.groups); {
		for g := range s.groups {
			if _, ok := done[g]; ok {
				continue
			}
			done[g] = struct{}{}
			for a := range g.members {
				for m := range s.registry.models.ofAgent(a) {
					s.addModel(m)
				}
			}
		}
	}
	return s
}
