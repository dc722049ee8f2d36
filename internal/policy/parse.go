// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The largest numbers, so that no product of them with replicas overflows.
const (
	maxInflight = 1_000_000
	maxTokens   = 1_000_000_000_000
	maxTries    = 1_000
)

// Parse reads and checks a file. Every problem is reported at once, as Problems;
// then there is no policy.
func Parse(data []byte) (*Policy, error) {
	root, err := document(data)
	if err != nil {
		return nil, Problems{{Message: err.Error()}}
	}
	f := file{policy: &Policy{models: map[string]*Model{}, aliases: map[string]string{}}}
	f.fields("", root, map[string]func(string, *yaml.Node){
		"models": func(path string, value *yaml.Node) { f.mapping(path, value, f.model) },
	})
	f.checkAliases()
	if len(f.found) > 0 {
		return nil, f.found
	}
	return f.policy, nil
}

// document is the top of the one document in data.
func document(data []byte) (*yaml.Node, error) {
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("must have at most %d bytes", MaxBytes)
	}
	var top yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	switch err := dec.Decode(&top); {
	case errors.Is(err, io.EOF):
		return nil, errors.New("must not be empty")
	case err != nil:
		return nil, syntax(err)
	}
	switch err := dec.Decode(&yaml.Node{}); {
	case err == nil:
		return nil, errors.New("must hold one YAML document")
	case !errors.Is(err, io.EOF):
		return nil, syntax(err)
	}
	if root := top.Content[0]; !absent(root) {
		return root, nil
	}
	return nil, errors.New("must not be empty")
}

// syntax makes one line of what the YAML reader says, without the file's bytes
// as they are.
func syntax(err error) error {
	q := fmt.Sprintf("%q", strings.TrimPrefix(err.Error(), "yaml: "))
	return errors.New("is not YAML: " + strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`))
}

// file is a policy that is being read.
type file struct {
	reader

	policy *Policy
	named  []alias
}

// alias is an alias where it stands.
type alias struct {
	name, model, path string
	line              int
}

func (f *file) model(path string, key, value *yaml.Node) {
	name := key.Value
	f.checkName(path, key.Line, name)
	m := &Model{}
	f.policy.models[name] = m
	f.fields(path, value, map[string]func(string, *yaml.Node){
		"aliases": func(path string, v *yaml.Node) {
			f.list(path, v, func(path string, v *yaml.Node) {
				if s := f.name(path, v); s != "" {
					m.Aliases = append(m.Aliases, s)
					f.named = append(f.named, alias{s, name, path, v.Line})
				}
			})
		},
		"max_inflight":        func(path string, v *yaml.Node) { m.MaxInflight = f.number(path, v, maxInflight) },
		"admit_budget_tokens": func(path string, v *yaml.Node) { m.AdmitBudgetTokens = f.number(path, v, maxTokens) },
		"steps":               func(path string, v *yaml.Node) { m.Steps = f.steps(path, v) },
	})
}

func (f *file) steps(path string, n *yaml.Node) []Step {
	var steps []Step
	first := map[string]string{}
	f.list(path, n, func(path string, n *yaml.Node) {
		var s Step
		named := false
		f.fields(path, n, map[string]func(string, *yaml.Node){
			"name":      func(path string, v *yaml.Node) { s.Name, named = f.name(path, v), true },
			"match":     func(path string, v *yaml.Node) { s.Match = f.match(path, v) },
			"max_tries": func(path string, v *yaml.Node) { s.MaxTries = f.number(path, v, maxTries) },
		})
		steps = append(steps, s)
		if s.Name == "" {
			if !named && (n.Kind == yaml.MappingNode || absent(n)) {
				f.add(path, n.Line, "needs a name")
			}
			return
		}
		if before, again := first[s.Name]; again {
			f.add(path+".name", n.Line, "is there twice: %s is the name of %s", quote(s.Name), before)
			return
		}
		first[s.Name] = path
	})
	return steps
}

func (f *file) match(path string, n *yaml.Node) Match {
	var m Match
	f.fields(path, n, map[string]func(string, *yaml.Node){
		"engine": func(path string, v *yaml.Node) { m.Engine = f.name(path, v) },
		"region": func(path string, v *yaml.Node) { m.Region = f.name(path, v) },
		"labels": func(path string, v *yaml.Node) {
			f.mapping(path, v, func(path string, key, v *yaml.Node) {
				f.checkName(path, key.Line, key.Value)
				if m.Labels == nil {
					m.Labels = map[string]string{}
				}
				m.Labels[key.Value] = f.name(path, v)
			})
		},
	})
	return m
}

// checkAliases finds aliases that could mean two things, once all models are known.
func (f *file) checkAliases() {
	first := map[string]alias{}
	for _, a := range f.named {
		if f.policy.models[a.name] != nil {
			f.add(a.path, a.line, "%s is the name of a model", quote(a.name))
			continue
		}
		if before, again := first[a.name]; again {
			f.add(a.path, a.line, "is there twice: %s is an alias of model %s in line %d", quote(a.name), quote(before.model), before.line)
			continue
		}
		first[a.name] = a
		f.policy.aliases[a.name] = a.model
	}
}
