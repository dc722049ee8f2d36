// SPDX-License-Identifier: Apache-2.0

package share

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// ago is so many seconds before the plan is made.
func ago(seconds int) time.Time { return now.Add(-time.Duration(seconds) * time.Second) }

// The states that agents of the table are in.
func asleep(a *Agent) { a.CanWake = true }
func waking(a *Agent) { a.Up, a.Occupies = true, true }
func ending(a *Agent) { a.Occupies, a.Leaving, a.CanWake = true, true, true }
func failed(*Agent)   {}

// up is an agent that serves, has been up for a minute and idle for half of it.
func up(a *Agent) {
	a.Up, a.Occupies = true, true
	a.UpSince, a.CloseFrom, a.IdleSince = ago(60), ago(30), ago(30)
}
func fresh(a *Agent)    { up(a); a.CloseFrom = ago(-5) }
func justIdle(a *Agent) { up(a); a.IdleSince = ago(3) }
func fixed(a *Agent)    { up(a); a.CloseFrom = time.Time{} }
func inUse(a *Agent)    { up(a); a.InFlight = true }
func closed(a *Agent)   { inUse(a); a.Up, a.Closing = false, true }

// older makes an agent that has been up and idle for ten seconds more.
func older(f func(*Agent)) func(*Agent) {
	return func(a *Agent) {
		f(a)
		a.UpSince, a.IdleSince = a.UpSince.Add(-10*time.Second), a.IdleSince.Add(-10*time.Second)
	}
}

// embedding makes an agent serve another kind than the others.
func embedding(f func(*Agent)) func(*Agent) { return func(a *Agent) { f(a); a.Kinds = 2 } }

// of is the models that an agent has, if not one of its own name.
func of(f func(*Agent), models ...string) agent { return agent{f, 1, "gpu", models} }

func costs(n int64, f func(*Agent)) agent { return agent{f, n, "gpu", nil} }

type agent struct {
	state  func(*Agent)
	cost   int64
	group  string // empty: none
	models []string
}

// gpu is a group of room for so much, with agents that serve models of their names.
type gpu struct {
	room   int64
	agents map[string]any // an agent, or its state
}

// input is the input of a case. The needs are models in the order in which they came to
// be wanted: a name that ends in ? is wanted ahead of requests, for others requests wait.
func (g gpu) input(needs []string) Input {
	in := Input{Now: now}
	groups := map[string]*Group{}
	byModel := map[string][]*Agent{}
	for _, id := range sortedKeys(g.agents) {
		spec, ok := g.agents[id].(agent)
		if !ok {
			spec = agent{g.agents[id].(func(*Agent)), 1, "gpu", nil}
		}
		if spec.models == nil {
			spec.models = []string{id}
		}
		a := &Agent{ID: id, Cost: spec.cost, Kinds: 1}
		spec.state(a)
		if spec.group != "" {
			if groups[spec.group] == nil {
				groups[spec.group] = &Group{Name: spec.group, Room: g.room}
				in.Groups = append(in.Groups, groups[spec.group])
			}
			a.Group = groups[spec.group]
			a.Group.Agents = append(a.Group.Agents, a)
		}
		for _, m := range spec.models {
			byModel[m] = append(byModel[m], a)
		}
	}
	for i, need := range needs {
		name := need
		if name[len(name)-1] == '?' {
			name = name[:len(name)-1]
		}
		m := &Model{Name: name, Demand: name == need, Turn: uint64(i + 1), Agents: byModel[name]}
		for _, a := range m.Agents {
			a.Demand, a.Wanted = a.Demand || m.Demand, true
		}
		in.Models = append(in.Models, m)
	}
	return in
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// outcome is a plan by names.
type outcome struct {
	wake, close []string
	wait        map[string][]string // for whom, by model
	unwakeable  []string
	next        int // seconds from now
}

func wordsOf(p *Plan) outcome {
	var o outcome
	for _, w := range p.Wake {
		o.wake = append(o.wake, w.Agent.ID)
	}
	for a := range p.Close {
		o.close = append(o.close, a.ID)
	}
	slices.Sort(o.close)
	for _, w := range p.Wait {
		if o.wait == nil {
			o.wait = map[string][]string{}
		}
		var ids []string
		for _, a := range w.For {
			ids = append(ids, a.ID)
		}
		slices.Sort(ids)
		for _, m := range w.Behind {
			ids = append(ids, "behind "+m.Name)
		}
		o.wait[w.Model.Name] = ids
	}
	for _, m := range p.Unwakeable {
		o.unwakeable = append(o.unwakeable, m.Name)
	}
	if !p.Next.IsZero() {
		o.next = int(p.Next.Sub(now) / time.Second)
	}
	return o
}

type (
	agents = map[string]any
	wants  = []string
	waits  = map[string][]string
)

func TestPlan(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		gpu
		wants

		want outcome
	}{
		"nobody is wanted":       {gpu{1, agents{"a": up, "b": asleep}}, nil, outcome{}},
		"room":                   {gpu{1, agents{"a": asleep}}, wants{"a"}, outcome{wake: []string{"a"}}},
		"room ahead of requests": {gpu{1, agents{"a": asleep}}, wants{"a?"}, outcome{wake: []string{"a"}}},
		"served already":         {gpu{1, agents{"a": up}}, wants{"a"}, outcome{}},
		"on its way":             {gpu{1, agents{"a": waking}}, wants{"a"}, outcome{}},
		"cannot be woken":        {gpu{1, agents{"a": failed, "b": up}}, wants{"a"}, outcome{unwakeable: []string{"a"}}},
		"an idle one makes room": {gpu{1, agents{"a": up, "b": asleep}}, wants{"b"}, outcome{close: []string{"a"}, wait: waits{"b": {"a"}}}},
		"an idle one makes room ahead of requests":   {gpu{1, agents{"a": up, "b": asleep}}, wants{"b?"}, outcome{close: []string{"a"}, wait: waits{"b": {"a"}}}},
		"one that was idle for a moment":             {gpu{1, agents{"a": justIdle, "b": asleep}}, wants{"b"}, outcome{close: []string{"a"}, wait: waits{"b": {"a"}}}},
		"not ahead of requests":                      {gpu{1, agents{"a": justIdle, "b": asleep}}, wants{"b?"}, outcome{wait: waits{"b": {"a"}}, next: 7}},
		"a busy one makes room":                      {gpu{1, agents{"a": inUse, "b": asleep}}, wants{"b"}, outcome{close: []string{"a"}, wait: waits{"b": {"a"}}}},
		"a busy one makes no room ahead of requests": {gpu{1, agents{"a": inUse, "b": asleep}}, wants{"b?"}, outcome{wait: waits{"b": {"a"}}, next: 10}},
		"nor one that requests wait for":             {gpu{1, agents{"a": up, "b": asleep}}, wants{"a", "b?"}, outcome{wait: waits{"b": {"a"}}}},
		"nor one that is kept":                       {gpu{1, agents{"a": up, "b": asleep}}, wants{"a?", "b?"}, outcome{wait: waits{"b": {"a"}}}},
		"one that is kept makes room for requests":   {gpu{1, agents{"a": up, "b": asleep}}, wants{"a?", "b"}, outcome{close: []string{"a"}, wait: waits{"b": {"a"}}}},
		"it is too soon":                             {gpu{1, agents{"a": fresh, "b": asleep}}, wants{"b"}, outcome{wait: waits{"b": {"a"}}, next: 5}},
		"it cannot be stopped":                       {gpu{1, agents{"a": fixed, "b": asleep}}, wants{"b"}, outcome{wait: waits{"b": {"a"}}}},
		"one is ending":                              {gpu{1, agents{"a": ending, "b": asleep}}, wants{"b"}, outcome{wait: waits{"b": {"a"}}}},
		"wanted while it is ending":                  {gpu{1, agents{"a": ending}}, wants{"a"}, outcome{wake: []string{"a"}}},
		"one is closed for it":                       {gpu{1, agents{"a": closed, "b": asleep}}, wants{"b"}, outcome{close: []string{"a"}, wait: waits{"b": {"a"}}}},
		"one was closed ahead of requests":           {gpu{1, agents{"a": closed, "b": asleep}}, wants{"b?"}, outcome{wait: waits{"b": {"a"}}, next: 10}},
		"one was closed for nobody":                  {gpu{1, agents{"a": closed, "b": asleep}}, nil, outcome{}},
		"too many are up":                            {gpu{1, agents{"a": older(up), "b": up}}, nil, outcome{close: []string{"a"}}},
		"too many are up for now":                    {gpu{1, agents{"a": fresh, "b": fixed}}, nil, outcome{next: 5}},
		"the longest idle one":                       {gpu{2, agents{"a": up, "b": older(up), "c": asleep}}, wants{"c"}, outcome{close: []string{"b"}, wait: waits{"c": {"b"}}}},
		"idle before kept":                           {gpu{2, agents{"a": up, "b": older(up), "c": asleep}}, wants{"b?", "c"}, outcome{close: []string{"a"}, wait: waits{"c": {"a"}}}},
		"kept before busy":                           {gpu{2, agents{"a": up, "b": older(inUse), "c": asleep}}, wants{"a?", "c"}, outcome{close: []string{"a"}, wait: waits{"c": {"a"}}}},
		"closed before busy":                         {gpu{2, agents{"a": closed, "b": older(inUse), "c": asleep}}, wants{"c"}, outcome{close: []string{"a"}, wait: waits{"c": {"a"}}}},
		"the longest up":                             {gpu{2, agents{"a": inUse, "b": older(inUse), "c": asleep}}, wants{"c"}, outcome{close: []string{"b"}, wait: waits{"c": {"b"}}}},
		"none that need not go":                      {gpu{10, agents{"a": costs(2, older(up)), "b": costs(6, up), "c": costs(8, asleep)}}, wants{"c"}, outcome{close: []string{"b"}, wait: waits{"c": {"b"}}}},
		"all together are too few":                   {gpu{10, agents{"a": costs(5, up), "b": costs(5, fixed), "c": costs(8, asleep)}}, wants{"c"}, outcome{wait: waits{"c": {"a", "b"}}}},
		"the first in the line gets the room":        {gpu{1, agents{"a": asleep, "b": asleep}}, wants{"b", "a"}, outcome{wake: []string{"b"}, wait: waits{"a": {"behind b"}}}},
		"requests come first":                        {gpu{1, agents{"a": asleep, "b": asleep}}, wants{"b?", "a"}, outcome{wake: []string{"a"}, wait: waits{"b": {"behind a"}}}},
		"a small one does not overtake":              {gpu{4, agents{"a": costs(2, inUse), "b": costs(4, asleep), "c": costs(2, asleep)}}, wants{"b", "c"}, outcome{close: []string{"a"}, wait: waits{"b": {"a"}, "c": {"a", "behind b"}}}},
		"ahead of requests it takes what is left":    {gpu{4, agents{"a": costs(2, fixed), "b": costs(4, asleep), "c": costs(2, asleep)}}, wants{"b?", "c"}, outcome{wake: []string{"c"}, wait: waits{"b": {"a", "behind c"}}}},
		"one agent has the model of another":         {gpu{1, agents{"a": of(up, "m"), "b": of(asleep, "m")}}, wants{"m"}, outcome{}},
		"the other agent of a model can be woken":    {gpu{1, agents{"a": of(failed, "m"), "b": of(asleep, "m")}}, wants{"m"}, outcome{wake: []string{"b"}}},
		"an agent of no group":                       {gpu{1, agents{"a": of(fixed, "x"), "b": of(asleep, "m"), "c": agent{asleep, 1, "", []string{"m"}}}}, wants{"m"}, outcome{wake: []string{"c"}}},
		"where there is room":                        {gpu{1, agents{"a": of(inUse, "x"), "b": of(asleep, "m"), "c": agent{asleep, 1, "gpu1", []string{"m"}}}}, wants{"m"}, outcome{wake: []string{"c"}}},
		"where an idle one makes room":               {gpu{1, agents{"a": of(inUse, "x"), "b": of(asleep, "m"), "c": agent{asleep, 1, "gpu1", []string{"m"}}, "d": agent{up, 1, "gpu1", nil}}}, wants{"m"}, outcome{close: []string{"d"}, wait: waits{"m": {"d"}}}},
		"a kind that is missing":                     {gpu{2, agents{"a": of(up, "m"), "b": of(embedding(asleep), "m")}}, wants{"m"}, outcome{wake: []string{"b"}}},
		"a kind that cannot be woken":                {gpu{2, agents{"a": of(asleep, "m"), "b": of(embedding(failed), "m")}}, wants{"m"}, outcome{wake: []string{"a"}, unwakeable: []string{"m"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.want, wordsOf(Make(tc.input(tc.wants))))
		})
	}
}
