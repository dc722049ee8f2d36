// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/holdgate/holdgate/agentreg/agent/engines"
	"github.com/holdgate/holdgate/agentreg/protocol"
	"github.com/holdgate/holdgate/internal/settings"
	"github.com/holdgate/holdgate/internal/target"
)

func (c *Config) readHealthPath(v settings.Value) {
	c.HealthPath = v.Name()
	if c.HealthPath != "" && !strings.HasPrefix(c.HealthPath, "/") {
		v.Bad("must begin with /")
	}
}

func (c *Config) readModels(v settings.Value) {
	v.List(func(v settings.Value) {
		name := v.Name()
		switch {
		case name == "":
		case slices.Contains(c.Models, name):
			v.Add("%s is given twice", v.Quote(name))
		default:
			c.Models = append(c.Models, name)
		}
	})
	if len(c.Models) > protocol.MaxModels {
		v.Add("must be at most %d, are %d", protocol.MaxModels, len(c.Models))
	}
}

// ReadKinds reads the kinds that the engine serves. The engine must have been read before;
// an unknown one is not reported again.
func (c *Config) ReadKinds(v settings.Value) {
	if len(v.Content) == 0 {
		v.Add("at least one is needed, or leave it out for the engine's usual one")
	}
	engine, unknown := engines.Find(c.Engine)
	v.List(func(v settings.Value) {
		k, err := protocol.ParseKind(v.Value)
		switch {
		case err != nil:
			v.Bad("must be chat, embedding or rerank")
		case unknown == nil && !slices.Contains(engine.Kinds, k):
			v.Add("%s has no %s", c.Engine, k)
		case !slices.Contains(c.Kinds, k.String()):
			c.Kinds = append(c.Kinds, k.String())
		}
	})
}

// ServedKinds returns the configured kinds, or the usual kind of the engine.
func (c *Config) ServedKinds() []target.Kind {
	if len(c.Kinds) > 0 {
		return c.kinds()
	}
	engine, err := engines.Find(c.Engine)
	if err != nil {
		return nil
	}
	return engine.Kinds[:1]
}

func (c *Config) readLabels(v settings.Value) {
	c.Labels = map[string]string{}
	v.Mapping(func(key *yaml.Node, v settings.Value) {
		v.At(key).CheckName(key.Value)
		c.Labels[key.Value] = v.Name()
	})
	if len(c.Labels) > protocol.MaxLabels {
		v.Add("must be at most %d, are %d", protocol.MaxLabels, len(c.Labels))
	}
}

func (c *Config) readEnv(v settings.Value) {
	v.Mapping(func(key *yaml.Node, v settings.Value) {
		value := v.Word()
		if key.Value == "" || strings.ContainsAny(key.Value, "=\x00") || strings.Contains(value, "\x00") {
			v.At(key).Add("is not a valid environment variable")
		}
		c.Env = append(c.Env, key.Value+"="+value)
	})
}
