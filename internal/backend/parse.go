// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/agentreg/agent"
	"github.com/holdgate/holdgate/internal/strictyaml"
	"github.com/holdgate/holdgate/sitemap"
)

// Read reads a list of backends. What is wrong with it is among the problems of the
// file.
func Read(v strictyaml.Value) []Config {
	var all []Config
	first := map[string]string{}
	v.List(func(v strictyaml.Value) {
		c := Config{Engine: agent.Custom, Slots: 1}
		readOne(v, &c)
		if before, again := first[c.Name]; again && c.Name != "" {
			v.Member("name", v.Node).Add("is there twice: %s is the name of %s", v.Quote(c.Name), before)
		}
		first[c.Name] = v.Path
		all = append(all, c)
	})
	return all
}

func readOne(v strictyaml.Value, c *Config) {
	var kinds []strictyaml.Value
	var none strictyaml.Value
	v.Fields(map[string]func(strictyaml.Value){
		"name":         func(v strictyaml.Value) { c.Name = readID(v) },
		"url":          func(v strictyaml.Value) { c.URL = readChecked(v, agent.CheckBackendURL) },
		"engine":       func(v strictyaml.Value) { c.Engine = readChecked(v, checkEngine) },
		"health_path":  func(v strictyaml.Value) { c.HealthPath = readPath(v) },
		"models":       func(v strictyaml.Value) { c.Models = readModels(v) },
		"kinds":        func(v strictyaml.Value) { none = v; v.List(func(v strictyaml.Value) { kinds = append(kinds, v) }) },
		"slots":        func(v strictyaml.Value) { c.Slots = int(v.Number(agentreg.MaxSlots)) },
		"region":       func(v strictyaml.Value) { c.Region = v.Name() },
		"labels":       func(v strictyaml.Value) { c.Labels = readLabels(v) },
		"max_wait":     func(v strictyaml.Value) { c.MaxWait = readUpToAnHour(v) },
		"wake":         func(v strictyaml.Value) { c.Wake = ReadWake(v) },
		"api_key_file": func(v strictyaml.Value) { c.APIKeyFile, c.keyLine = v.Name(), v.Line },
	}, "name", "url")
	if len(kinds) == 0 && none.Node != nil {
		none.Add("at least one is needed, or leave it out for the engine's usual one")
	}
	for _, v := range kinds {
		c.addKind(v)
	}
}

// readID reads a name that is to be part of an agent's id.
func readID(v strictyaml.Value) string {
	name := v.Name()
	if name == "" {
		return ""
	}
	if err := agentreg.CheckName(agentreg.BackendPrefix + name); err != nil {
		v.Add("with %s before it, %s", agentreg.BackendPrefix, err.Error())
	}
	return name
}

func readChecked(v strictyaml.Value, check func(string) error) string {
	if !strictyaml.IsString(v.Node) {
		v.Bad(strictyaml.MustBeString)
		return ""
	}
	if err := check(v.Value); err != nil {
		v.Add("%s", err.Error())
	}
	return v.Value
}

func checkEngine(name string) error {
	_, err := agent.KindsOf(name)
	return err
}

func readPath(v strictyaml.Value) string {
	path := v.Name()
	if path != "" && !strings.HasPrefix(path, "/") {
		v.Bad("must begin with /")
	}
	return path
}

func readModels(v strictyaml.Value) []string {
	var models []string
	v.List(func(v strictyaml.Value) {
		name := v.Name()
		switch {
		case name == "":
		case slices.Contains(models, name):
			v.Add("%s is there twice", v.Quote(name))
		default:
			models = append(models, name)
		}
	})
	if len(models) > agentreg.MaxModels {
		v.Add("must be at most %d, are %d", agentreg.MaxModels, len(models))
	}
	return models
}

// addKind reads a kind, once the engine is known.
func (c *Config) addKind(v strictyaml.Value) {
	name := v.Name()
	if name == "" {
		return
	}
	k, err := agentreg.ParseKind(name)
	possible, unknown := agent.KindsOf(c.Engine)
	switch {
	case err != nil:
		v.Bad("must be chat, embedding or rerank")
	case unknown == nil && !slices.Contains(possible, k):
		v.Add("%s has no %s", c.Engine, k)
	case !slices.Contains(c.Kinds, k):
		c.Kinds = append(c.Kinds, k)
	}
}

func readLabels(v strictyaml.Value) map[string]string {
	labels := map[string]string{}
	v.Mapping(func(key *yaml.Node, v strictyaml.Value) {
		v.At(key).CheckName(key.Value)
		labels[key.Value] = v.Name()
	})
	if len(labels) > agentreg.MaxLabels {
		v.Add("must be at most %d, are %d", agentreg.MaxLabels, len(labels))
	}
	return labels
}

func readUpToAnHour(v strictyaml.Value) time.Duration {
	d, err := time.ParseDuration(v.Value)
	if v.Kind != yaml.ScalarNode || err != nil || d <= 0 || d > time.Hour {
		v.Bad("must be a duration above 0 and at most 1h, such as 240s")
		return 0
	}
	return d
}

// ReadWake reads the webhook that wakes an engine.
func ReadWake(v strictyaml.Value) *sitemap.Wake {
	w := &sitemap.Wake{Method: http.MethodPost}
	v.Fields(map[string]func(strictyaml.Value){
		"url": func(v strictyaml.Value) { w.URL = readChecked(v, sitemap.CheckWakeURL) },
		"method": func(v strictyaml.Value) {
			if w.Method = v.Name(); w.Method != http.MethodPost && w.Method != http.MethodGet {
				v.Bad("must be POST or GET")
			}
		},
		"cooldown": func(v strictyaml.Value) { w.Cooldown = readUpToAnHour(v) },
	}, "url")
	return w
}
