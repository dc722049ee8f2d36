// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"go.yaml.in/yaml/v3"

	"github.com/holdgate/holdgate/agentreg/protocol"
	"github.com/holdgate/holdgate/internal/settings"
)

// The largest numbers in the file. With them no product with a number of replicas overflows.
const (
	maxInflight = 1_000_000
	maxTokens   = 1_000_000_000_000
	maxTries    = 1_000
)

// value is a value in the file with its position.
type value = settings.Value

var rules = settings.Rules{MaxBytes: MaxBytes, Show: settings.Values, EmptyOK: true}

// Parse reads and checks a file. Its error is settings.Problems, which lists all of them.
func Parse(data []byte) (*Policy, error) {
	f := file{policy: &Policy{models: map[string]*Model{}, aliases: map[string]string{}}}
	err := rules.Parse(data, func(top value) {
		top.Fields(map[string]func(value){
			"models": func(v value) { v.Mapping(f.model) },
		})
		f.checkAliases()
	})
	if err != nil {
		return nil, err
	}
	return f.policy, nil
}

// file is a policy file while it is read.
type file struct {
	policy *Policy
	named  []alias
}

// alias is an alias with its position in the file.
type alias struct {
	value

	name, model string
}

func (f *file) model(key *yaml.Node, v value) {
	name := key.Value
	v.At(key).CheckName(name)
	m := &Model{}
	f.policy.models[name] = m
	v.Fields(map[string]func(value){
		"aliases": func(v value) {
			v.List(func(v value) {
				if s := v.Name(); s != "" {
					m.Aliases = append(m.Aliases, s)
					f.named = append(f.named, alias{v, s, name})
				}
			})
		},
		"max_inflight":        func(v value) { m.MaxInflight = v.Number(maxInflight) },
		"admit_budget_tokens": func(v value) { m.AdmitBudgetTokens = v.Number(maxTokens) },
		"steps":               func(v value) { m.Steps = readSteps(v) },
		"destination":         func(v value) { m.Destination = Destination(v.Checked(CheckDestination)) },
	})
}

func readSteps(v value) []Step {
	var steps []Step
	first := map[string]string{}
	v.List(func(v value) {
		var s Step
		named := false
		v.Fields(map[string]func(value){
			"name":      func(v value) { s.Name, named = v.Name(), true },
			"match":     func(v value) { s.Match = readMatch(v) },
			"max_tries": func(v value) { s.MaxTries = v.Number(maxTries) },
		})
		steps = append(steps, s)
		if s.Name == "" {
			if !named && (v.Kind == yaml.MappingNode || v.Absent()) {
				v.Add("needs a name")
			}
			return
		}
		if before, dup := first[s.Name]; dup {
			v.Member("name", v.Node).Add("is given twice: %s is the name of %s", v.Quote(s.Name), before)
			return
		}
		first[s.Name] = v.Path
		checkReached(v, steps)
	})
	return steps
}

// checkReached reports the last of steps if no request can reach it: a step before it
// matches all of its replicas, and has no max_tries.
func checkReached(v value, steps []Step) {
	last := len(steps) - 1
	m := &steps[last].Match
	for i := range steps[:last] {
		s := &steps[i]
		if s.Name != "" && s.MaxTries == 0 && s.Match.Fits(m.Engine, m.Region, m.Labels) {
			v.Add("matches no replica that step %s does not match, which has no max_tries", v.Quote(s.Name))
			return
		}
	}
}

func readMatch(v value) Match {
	var m Match
	v.Fields(map[string]func(value){
		"engine": func(v value) { m.Engine = v.Name() },
		"region": func(v value) { m.Region = v.Name() },
		"labels": func(v value) {
			v.Mapping(func(key *yaml.Node, v value) {
				v.At(key).CheckName(key.Value)
				if m.Labels == nil {
					m.Labels = map[string]string{}
				}
				m.Labels[key.Value] = v.Name()
			})
			if n := len(m.Labels); n > protocol.MaxLabels {
				v.Add("must be at most %d, as for an agent, not %d", protocol.MaxLabels, n)
			}
		},
	})
	return m
}

// checkAliases adds the aliases to the policy, and reports ambiguous ones. It must be called
// when all models have been read.
func (f *file) checkAliases() {
	first := map[string]alias{}
	for _, a := range f.named {
		if f.policy.models[a.name] != nil {
			a.Add("%s is the name of a model", a.Quote(a.name))
			continue
		}
		if before, dup := first[a.name]; dup {
			a.Add("is given twice: %s is an alias of model %s in line %d", a.Quote(a.name), a.Quote(before.model), before.Line)
			continue
		}
		first[a.name] = a
		f.policy.aliases[a.name] = a.model
	}
}
