// SPDX-License-Identifier: Apache-2.0

package agentreg

// scope is the groups and models that a change may affect: groups with agents of one
// model are planned together, others do not depend on each other.
type scope struct {
	registry *Registry
	groups   map[*group]struct{}
	models   map[*model]struct{}
}

func (r *Registry) newScope() scope {
	return scope{r, map[*group]struct{}{}, map[*model]struct{}{}}
}

// scope is what a change of the agent may affect.
func (a *registration) scope() scope {
	s := a.registry.newScope()
	for m := range a.registry.models.of(a) {
		s.addModel(m)
	}
	s.addGroup(a.group)
	return s.complete()
}

// scopeOf is what a change of m may affect.
func (r *Registry) scopeOf(m *model) scope {
	s := r.newScope()
	s.addModel(m)
	return s.complete()
}

// scopeOfGroup is what a change of g may affect.
func (r *Registry) scopeOfGroup(g *group) scope {
	s := r.newScope()
	s.addGroup(g)
	return s.complete()
}

// addGroup adds g, unless it is nil or has no members any more.
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

// complete adds the models of all agents in the groups, and their groups, until
// nothing is missing.
func (s scope) complete() scope {
	for done := map[*group]struct{}{}; len(done) < len(s.groups); {
		for g := range s.groups {
			if _, ok := done[g]; ok {
				continue
			}
			done[g] = struct{}{}
			for a := range g.members {
				for m := range s.registry.models.of(a) {
					s.addModel(m)
				}
			}
		}
	}
	return s
}
