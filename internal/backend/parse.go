// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/net/http/httpguts"

	"github.com/holdgate/holdgate/agentreg/agent"
	"github.com/holdgate/holdgate/agentreg/agent/engines"
	"github.com/holdgate/holdgate/agentreg/protocol"
	"github.com/holdgate/holdgate/internal/settings"
	"github.com/holdgate/holdgate/internal/target"
	"github.com/holdgate/holdgate/sitemap"
)

// Read reads a list of backends. What is wrong with it is among the problems of the
// file.
func Read(v settings.Value) []Config {
	var all []Config
	first := map[string]string{}
	v.List(func(v settings.Value) {
		c := Config{Engine: engines.Custom, Slots: 1}
		readOne(v, &c)
		if before, again := first[c.Name]; again && c.Name != "" {
			v.Member("name", v.Node).Add("is there twice: %s is the name of %s", v.Quote(c.Name), before)
		}
		first[c.Name] = v.Path
		all = append(all, c)
	})
	return all
}

func readOne(v settings.Value, c *Config) {
	var secure []settings.Value
	var kinds settings.Value
	v.Fields(map[string]func(settings.Value){
		"name":        func(v settings.Value) { c.Name = readID(v) },
		"url":         func(v settings.Value) { c.URL = readChecked(v, agent.CheckBackendURL) },
		"engine":      func(v settings.Value) { c.Engine = readChecked(v, checkEngine) },
		"health_path": func(v settings.Value) { c.HealthPath = readPath(v) },
		"models":      func(v settings.Value) { c.Models = readModels(v) },
		"kinds":       func(v settings.Value) { kinds = v },
		"slots":       func(v settings.Value) { c.Slots = int(v.Number(protocol.MaxSlots)) },
		"region":      func(v settings.Value) { c.Region = v.Name() },
		"labels":      func(v settings.Value) { c.Labels = readLabels(v) },
		"max_wait":    func(v settings.Value) { c.MaxWait = readUpToAnHour(v) },
		"wake":        func(v settings.Value) { c.Wake = ReadWake(v) },
		"host":        func(v settings.Value) { c.Host = readChecked(v, checkHost) },
		"sni":         func(v settings.Value) { c.SNI, secure = readChecked(v, checkHost), append(secure, v) },
		"ca_file": func(v settings.Value) {
			c.CAFile, c.caLine, secure = readChecked(v, checkAbsolute), v.Line, append(secure, v)
		},
		"pool":         func(v settings.Value) { c.Pool = readBool(v) },
		"not_taken":    func(v settings.Value) { c.NotTaken = readStatuses(v) },
		"health_model": func(v settings.Value) { c.HealthModel = readBool(v) },
		"api_key_file": func(v settings.Value) { c.APIKeyFile, c.keyLine = v.Name(), v.Line },
	}, "name", "url")
	if kinds.Node != nil {
		c.Kinds = ReadKinds(kinds, c.Engine)
	}
	for _, v := range secure {
		if !c.Secure() {
			v.Add("needs a url of https")
		}
	}
	if c.Pool && c.NotTaken == nil {
		c.NotTaken = []int{http.StatusServiceUnavailable}
	}
}

// readID reads a name that is to be part of an agent's id.
func readID(v settings.Value) string {
	name := v.Name()
	if name == "" {
		return ""
	}
	if strings.Contains(name, agent.ReplicaMark) {
		v.Add("must not contain %s: the ids of further addresses have it", agent.ReplicaMark)
	}
	if err := protocol.CheckName(protocol.BackendPrefix + name); err != nil {
		v.Add("with %s before it, %s", protocol.BackendPrefix, err.Error())
	}
	return name
}

func readChecked(v settings.Value, check func(string) error) string {
	if !settings.IsString(v.Node) {
		v.Bad(settings.MustBeString)
		return ""
	}
	if err := check(v.Value); err != nil {
		v.Add("%s", err.Error())
	}
	return v.Value
}

func checkHost(host string) error {
	if host == "" || !httpguts.ValidHostHeader(host) {
		return fmt.Errorf("must be a host, with or without a port, is %q", host)
	}
	return nil
}

// checkAbsolute is for files that Envoy reads too.
func checkAbsolute(path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("must be an absolute path, for Envoy reads it too, is %q", path)
	}
	return nil
}

func readBool(v settings.Value) bool {
	if v.Kind != yaml.ScalarNode || v.Value != "true" && v.Value != "false" {
		v.Bad("must be true or false")
	}
	return v.Value == "true"
}

func readStatuses(v settings.Value) []int {
	statuses := []int{}
	v.List(func(v settings.Value) {
		status := int(v.Number(599))
		if status > 0 && status < http.StatusBadRequest {
			v.Bad("must be a status from 400 to 599")
		}
		statuses = append(statuses, status)
	})
	return statuses
}

func checkEngine(name string) error {
	_, err := engines.Find(name)
	return err
}

func readPath(v settings.Value) string {
	path := v.Name()
	if path != "" && !strings.HasPrefix(path, "/") {
		v.Bad("must begin with /")
	}
	return path
}

func readModels(v settings.Value) []string {
	var models []string
	v.List(func(v settings.Value) {
		name := v.Name()
		switch {
		case name == "":
		case slices.Contains(models, name):
			v.Add("%s is there twice", v.Quote(name))
		default:
			models = append(models, name)
		}
	})
	if len(models) > protocol.MaxModels {
		v.Add("must be at most %d, are %d", protocol.MaxModels, len(models))
	}
	return models
}

// ReadKinds reads what an engine is for. What is wrong with an unknown engine is for
// the caller to report.
func ReadKinds(v settings.Value, engine string) (kinds []target.Kind) {
	if len(v.Content) == 0 {
		v.Add("at least one is needed, or leave it out for the engine's usual one")
	}
	known, unknown := engines.Find(engine)
	v.List(func(v settings.Value) {
		k, err := protocol.ParseKind(v.Value)
		switch {
		case err != nil:
			v.Bad("must be chat, embedding or rerank")
		case unknown == nil && !slices.Contains(known.Kinds, k):
			v.Add("%s has no %s", engine, k)
		case !slices.Contains(kinds, k):
			kinds = append(kinds, k)
		}
	})
	return kinds
}

func readLabels(v settings.Value) map[string]string {
	labels := map[string]string{}
	v.Mapping(func(key *yaml.Node, v settings.Value) {
		v.At(key).CheckName(key.Value)
		labels[key.Value] = v.Name()
	})
	if len(labels) > protocol.MaxLabels {
		v.Add("must be at most %d, are %d", protocol.MaxLabels, len(labels))
	}
	return labels
}

func readUpToAnHour(v settings.Value) time.Duration {
	d, err := time.ParseDuration(v.Value)
	if v.Kind != yaml.ScalarNode || err != nil || d <= 0 || d > time.Hour {
		v.Bad("must be a duration above 0 and at most 1h, such as 240s")
		return 0
	}
	return d
}

// ReadWake reads the webhook that wakes an engine.
func ReadWake(v settings.Value) *sitemap.Wake {
	w := &sitemap.Wake{Method: http.MethodPost}
	v.Fields(map[string]func(settings.Value){
		"url": func(v settings.Value) { w.URL = readChecked(v, sitemap.CheckWakeURL) },
		"method": func(v settings.Value) {
			if w.Method = v.Name(); w.Method != http.MethodPost && w.Method != http.MethodGet {
				v.Bad("must be POST or GET")
			}
		},
		"cooldown": func(v settings.Value) { w.Cooldown = readUpToAnHour(v) },
	}, "url")
	return w
}
