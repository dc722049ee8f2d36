// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"time"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
)

// area is groups and models that a change may concern: groups with agents of one model
// are planned together, others have nothing to do with each other.
type area struct {
	groups map[*group]struct{}
	models map[*model]struct{}
}

func newArea() area { return area{map[*group]struct{}{}, map[*model]struct{}{}} }

// areaOf is what a change of rec may concern.
func (r *Registry) areaOf(rec *registration) area {
	in := newArea()
	for _, name := range rec.hello.info.Models {
		if m := r.models[name]; m != nil {
			in.addModel(m)
		}
	}
	if g := rec.group; g != nil && r.groups[g.name] == g {
		in.groups[g] = struct{}{}
	}
	return r.grown(in)
}

// areaOfGroup is what a change of g may concern.
func (r *Registry) areaOfGroup(g *group) area {
	in := newArea()
	if r.groups[g.name] == g {
		in.groups[g] = struct{}{}
	}
	return r.grown(in)
}

// addModel adds m and the groups of its agents.
func (in area) addModel(m *model) {
	if _, again := in.models[m]; again {
		return
	}
	in.models[m] = struct{}{}
	for rec := range m.agents {
		if rec.group != nil {
			in.groups[rec.group] = struct{}{}
		}
	}
}

// grown adds the models of all agents in the area's groups, and their groups, until
// nothing is missing.
func (r *Registry) grown(in area) area {
	for done := map[*group]struct{}{}; len(done) < len(in.groups); {
		for g := range in.groups {
			if _, again := done[g]; again {
				continue
			}
			done[g] = struct{}{}
			for rec := range g.members {
				for _, name := range rec.hello.info.Models {
					if m := r.models[name]; m != nil {
						in.addModel(m)
					}
				}
			}
		}
	}
	return in
}

// levels is rec without what each heartbeat brings anew and no decision depends on.
func (a *registration) levels() registration {
	l := *a
	l.lastSeen, l.fewer, l.status = time.Time{}, fewer{}, nil
	if a.status != nil {
		l.status = heard
	}
	return l
}

// heard stands for any status in levels.
var heard = &pb.Status{}
