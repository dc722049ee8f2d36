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

// value is a place in a file.
type value = settings.Value

var rules = settings.Rules{Show: settings.Values, EmptyOK: true}

// file is a File that is being read.
type file struct {
	*File

	groups map[string]*group
	places []value // of the models
}

// parse reads and checks a file. Every problem is reported at once.
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

// readBackends checks the backends as holdgate serve does, which gets them unchanged.
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

// wakeMargin is how long before the end of a request's hold budget a wake fails, so that
// the request is answered with the reason.
const wakeMargin = 10 * time.Second

// limitWake sets the wake timeout if the file does not: the wake fails, with its reason,
// before requests are answered that the model is still waking.
func (m *Model) limitWake(serveBudget string) {
	if m.WakeTimeout > 0 {
		return
	}
	budget := m.HoldBudget
	if budget == 0 {
		budget, _ = time.ParseDuration(serveBudget) // serve reports what is wrong with it
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
	f.places = append(f.places, v)
}

// name reads the name of a model, which must differ from those before it.
func (f *file) name(v value) string {
	name := v.Name()
	for _, m := range f.Models {
		if name != "" && m.Name == name {
			v.Add("%s is given twice", v.Quote(name))
		}
	}
	return name
}

// readKinds reads the kinds of the model at v, which are the engine's usual one if it
// names none, and checks that it has what a warm-up needs.
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

// readCommand splits a command like a shell, and checks its program and that it uses the
// port. The directory and the environment must have been read.
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

// ownFlags are the flags of holdgate serve that connect the parts with each other.
var ownFlags = []string{
	"site-id", "extproc-listen", "relay", "agents-listen", "admin-listen", "envoy-admin", "map-file", "ports-file", "group-grace", "config",
}
