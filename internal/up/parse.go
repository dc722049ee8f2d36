// SPDX-License-Identifier: Apache-2.0

package up

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kballard/go-shellquote"
	"go.yaml.in/yaml/v3"

	"github.com/holdgate/holdgate/agentreg/agent"
	"github.com/holdgate/holdgate/agentreg/agent/engines"
	"github.com/holdgate/holdgate/internal/backend"
	"github.com/holdgate/holdgate/internal/config"
	"github.com/holdgate/holdgate/internal/settings"
	"github.com/holdgate/holdgate/internal/target"
)

const defaultTimeout = 5 * time.Minute

// value is a value in a file, with its path and line.
type value = settings.Value

var rules = settings.Rules{Show: settings.Values, EmptyOK: true}

// file is a File while it is read.
type file struct {
	*File

	groups      map[string]*group
	modelValues []value // the places of File.Models in the file
}

// parse parses and checks a file. The error has all problems.
func parse(text []byte) (*File, error) {
	f := file{File: &File{Listen: "127.0.0.1:8080"}, groups: map[string]*group{}}
	if err := rules.Parse(text, f.read); err != nil {
		return nil, err
	}
	return f.File, nil
}

func (f *file) read(top value) {
	served := false
	top.Fields(map[string]func(value){
		"listen": func(v value) {
			f.Listen = v.Word()
			if _, err := netip.ParseAddrPort(f.Listen); err != nil {
				v.Bad("must be ip:port, such as 127.0.0.1:8080")
			}
		},
		"admin": func(v value) { f.Admin = v.Word() },
		"serve": func(v value) {
			f.Serve = map[string]string{}
			v.Mapping(func(key *yaml.Node, v value) {
				if slices.Contains(ownFlags, key.Value) {
					v.At(key).Add("is not for this file to set: holdgate up does")
				}
				f.Serve[key.Value] = v.Word()
			})
		},
		"backends": func(v value) { served = true; f.readBackends(v) },
		"groups":   func(v value) { v.Mapping(f.group) },
		"models": func(v value) {
			served = true
			v.List(f.model)
			if len(f.Models) == 0 {
				v.Add("at least one is needed")
			}
		},
	})
	if !served {
		top.Add("needs models, or backends")
	}
	f.checkGroups()
	for i := range f.Models {
		f.Models[i].limitWake(f.Serve["wake-hold-budget"])
	}
}

// readBackends checks the backends as holdgate serve does, and keeps their text, which is
// passed on to it unchanged.
func (f *file) readBackends(v value) {
	all := backend.Read(v)
	if len(all) == 0 {
		v.Add("at least one is needed")
		return
	}
	f.backendCAs = backend.CAs(all)
	text, err := yaml.Marshal(map[string]*yaml.Node{"backends": v.Node})
	if err != nil {
		v.Add("%s", err.Error())
	}
	f.backends = text
}

// wakeMargin is how much shorter the wake timeout is than the hold budget, so that requests
// are answered with the reason why the wake failed.
const wakeMargin = 10 * time.Second

// limitWake sets the wake timeout if the file does not, to less than the hold budget: a wake
// then fails before the requests that wait for it are answered. serveBudget is the flag of
// holdgate serve for the default budget.
func (m *Model) limitWake(serveBudget string) {
	if m.WakeTimeout > 0 {
		return
	}
	budget := m.HoldBudget
	if budget == 0 {
		budget, _ = time.ParseDuration(serveBudget) // serve reports if it is invalid
	}
	if budget <= 0 {
		budget = defaultTimeout
	}
	m.WakeTimeout = max(budget-wakeMargin, budget/2)
}

func (f *file) model(v value) {
	m := Model{
		Engine: engines.Custom, Slots: 1,
		IdleTimeout: defaultTimeout, MinUpTime: -1,
	}
	var kinds, command value
	fields := m.Keys("engine", "warmup", "dir", "env", "health_path", "slots", "idle_timeout", "min_up_time", "wake_timeout", "group", "max_awake", "memory")
	maps.Copy(fields, map[string]func(value){
		"name":        func(v value) { m.Name = f.name(v) },
		"kinds":       func(v value) { kinds = v },
		"exec":        func(v value) { command = v },
		"wake":        func(v value) { m.Wake = backend.ReadWake(v) },
		"hold_budget": func(v value) { m.HoldBudget = agent.ReadTime(v, time.Second, config.MaxHoldBudget) },
	})
	v.Fields(fields, "name", "exec")
	if m.MinUpTime < 0 {
		m.MinUpTime = agent.MinUpTimeFor(m.IdleTimeout)
	}
	m.readKinds(v, kinds)
	if command.Node != nil {
		m.readCommand(command)
	}
	f.Models = append(f.Models, m)
	f.modelValues = append(f.modelValues, v)
}

// name reads the name of a model, which must be unique.
func (f *file) name(v value) string {
	name := v.Name()
	for _, m := range f.Models {
		if name != "" && m.Name == name {
			v.Add("%s is given twice", v.Quote(name))
		}
	}
	return name
}

// readKinds reads the kinds of the model at v, by default the usual one of the engine. It
// also checks that a model that is to be warmed up has the kind chat.
func (m *Model) readKinds(v, kinds value) {
	if _, unknown := engines.Find(m.Engine); unknown != nil {
		return
	}
	if kinds.Node != nil {
		m.ReadKinds(kinds)
	}
	if served := m.ServedKinds(); len(m.Kinds) == 0 {
		m.Kinds = []string{served[0].String()}
	}
	if m.Warmup != nil && *m.Warmup && !slices.Contains(m.Kinds, target.Chat.String()) {
		v.Member("warmup", v.Node).Add("is a chat completion: it needs the kind chat")
	}
}

// readCommand splits a command like a shell. It checks that its program exists and that it
// uses {port}. The directory and the environment must have been read before.
func (m *Model) readCommand(v value) {
	var err error
	if m.Exec, err = shellquote.Split(v.Word()); err != nil || len(m.Exec) == 0 {
		v.Bad("must be a command with its arguments")
		return
	}
	v.Check(agent.CheckProgram(m.command()[0], m.Dir))
	if !hasPort(m.Exec) && !hasPort(m.Env) {
		v.Add("has no {port}, and env has none: the engine must listen on the port that it is given")
	}
}

func hasPort(texts []string) bool {
	return slices.ContainsFunc(texts, func(s string) bool { return strings.Contains(s, "{port}") })
}

// ownFlags are the flags of holdgate serve that holdgate up sets itself.
var ownFlags = []string{
	"site-id", "extproc-listen", "relay", "agents-listen", "admin-listen", "envoy-admin", "map-file", "ports-file", "group-grace", "config",
}
