// SPDX-License-Identifier: Apache-2.0

package up

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kballard/go-shellquote"
	"go.yaml.in/yaml/v3"

	"github.com/holdgate/holdgate/agentreg/agent"
	"github.com/holdgate/holdgate/agentreg/agent/engines"
	"github.com/holdgate/holdgate/agentreg/protocol"
	"github.com/holdgate/holdgate/internal/backend"
	"github.com/holdgate/holdgate/internal/config"
	"github.com/holdgate/holdgate/internal/settings"
	"github.com/holdgate/holdgate/internal/target"
)

const (
	defaultTimeout = 5 * time.Minute
	maxTimeout     = 365 * 24 * time.Hour
)

// value is a place in the file.
type value = settings.Value

var rules = settings.Rules{Show: settings.Values, EmptyOK: true}

// file is a File that is being read.
type file struct {
	*File

	groups map[string]*group
	asks   []ask
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
			f.Listen = word(v)
			if _, err := netip.ParseAddrPort(f.Listen); err != nil {
				v.Bad("must be ip:port, such as 127.0.0.1:8080")
			}
		},
		"admin": func(v value) { f.Admin = word(v) },
		"serve": func(v value) {
			f.Serve = map[string]string{}
			v.Mapping(func(key *yaml.Node, v value) {
				if slices.Contains(ownFlags, key.Value) {
					v.At(key).Add("is not for this file to set: holdgate up does")
				}
				f.Serve[key.Value] = word(v)
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

// readBackends checks the backends as holdgate serve does, which is given them as they
// stand there.
func (f *file) readBackends(v value) {
	all := backend.Read(v)
	if len(all) == 0 {
		v.Add("at least one is needed")
		return
	}
	f.backendCAs = backend.CAs(all)
	text, err := yaml.Marshal(map[string]*yaml.Node{"backends": v.Node})
	if err != nil {
		v.Add("%s", err)
	}
	f.backends = text
}

// wakeMargin is how long before the end of its hold budget a request learns why its
// model did not wake.
const wakeMargin = 10 * time.Second

// limitWake sets the wake timeout where the file does not: the wake fails, with its
// reason, before requests are answered that the model is still waking.
func (m *Model) limitWake(serveBudget string) {
	if m.WakeTimeout > 0 {
		return
	}
	budget := m.HoldBudget
	if budget == 0 {
		budget, _ = time.ParseDuration(serveBudget) // serve finds what is wrong with it
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
	a := ask{value: v, model: len(f.Models)}
	var kinds, command value
	v.Fields(map[string]func(value){
		"name":         func(v value) { m.Name = f.name(v) },
		"kinds":        func(v value) { kinds = v },
		"engine":       func(v value) { m.Engine = v.Name() },
		"warmup":       func(v value) { m.Warmup = flag(v) },
		"exec":         func(v value) { command = v },
		"dir":          func(v value) { m.Dir = directory(v) },
		"env":          func(v value) { m.Env = environment(v) },
		"health_path":  func(v value) { m.HealthPath = path(v) },
		"slots":        func(v value) { m.Slots = int(v.Number(protocol.MaxSlots)) },
		"idle_timeout": func(v value) { m.IdleTimeout = span(v, time.Second, maxTimeout) },
		"min_up_time":  func(v value) { m.MinUpTime = span(v, 0, maxTimeout) },
		"wake_timeout": func(v value) { m.WakeTimeout = span(v, time.Second, maxTimeout) },
		"wake":         func(v value) { m.Wake = backend.ReadWake(v) },
		"hold_budget":  func(v value) { m.HoldBudget = span(v, time.Second, config.MaxHoldBudget) },
		"group":        func(v value) { a.group = v.Name() },
		"max_awake":    func(v value) { a.maxAwake = int(v.Number(protocol.MaxSlots)) },
		"memory":       func(v value) { a.memory = size(v) },
	}, "name", "exec")
	if m.MinUpTime < 0 {
		m.MinUpTime = agent.MinUpTimeFor(m.IdleTimeout)
	}
	m.checkEngine(v, kinds)
	if command.Node != nil {
		m.readCommand(command)
	}
	f.Models = append(f.Models, m)
	f.asks = append(f.asks, a)
}

// name reads the name of a model, which no model before it may have.
func (f *file) name(v value) string {
	name := v.Name()
	for _, m := range f.Models {
		if name != "" && m.Name == name {
			v.Add("%s is there twice", v.Quote(name))
		}
	}
	return name
}

// checkEngine reads the kinds, which are the engine's usual one when the model v
// names none, and finds what the engine has not.
func (m *Model) checkEngine(v, kinds value) {
	engine, err := engines.Find(m.Engine)
	if err != nil {
		if m.Engine != "" {
			v.Member("engine", v.Node).Add("%s", err)
		}
		return
	}
	if kinds.Node != nil {
		for _, k := range backend.ReadKinds(kinds, m.Engine) {
			m.Kinds = append(m.Kinds, k.String())
		}
	}
	if len(m.Kinds) == 0 {
		m.Kinds = []string{engine.Kinds[0].String()}
	}
	if m.Warmup != nil && *m.Warmup && !slices.Contains(m.Kinds, target.Chat.String()) {
		v.Member("warmup", v.Node).Add("is a chat completion: it needs the kind chat")
	}
}

// flag reads true or false.
func flag(v value) *bool {
	var b bool
	if v.Kind != yaml.ScalarNode || v.ShortTag() != "!!bool" || v.Decode(&b) != nil {
		v.Bad("must be true or false")
	}
	return &b
}

// readCommand splits a command as a shell would, and looks for its program and for
// the port in it. The directory and the environment are known.
func (m *Model) readCommand(v value) {
	var err error
	if m.words, err = shellquote.Split(word(v)); err != nil || len(m.words) == 0 {
		v.Bad("must be a command with its arguments")
		return
	}
	if err := agent.CheckProgram(m.command()[0], m.Dir); err != nil {
		v.Add("%s", err)
	}
	if !hasPort(m.words...) && !hasPort(slices.Collect(maps.Values(m.Env))...) {
		v.Add("has no {port}, and env has none: the engine must listen on the port that it is given")
	}
}

func hasPort(texts ...string) bool {
	return slices.ContainsFunc(texts, func(s string) bool { return strings.Contains(s, "{port}") })
}

// directory reads where a command runs.
func directory(v value) string {
	dir := word(v)
	if err := agent.CheckDir(dir); err != nil {
		v.Add("%s", err)
	}
	return dir
}

// word reads a scalar as it stands there.
func word(v value) string {
	if v.Kind != yaml.ScalarNode || v.Absent() {
		v.Bad(settings.MustBeString)
		return ""
	}
	return v.Value
}

// ownFlags are the flags of holdgate serve that make the parts find each other.
var ownFlags = []string{
	"site-id", "extproc-listen", "relay", "agents-listen", "admin-listen", "envoy-admin", "map-file", "ports-file", "group-grace", "config",
}

func environment(v value) map[string]string {
	list := map[string]string{}
	v.Mapping(func(key *yaml.Node, v value) {
		list[key.Value] = word(v)
		if key.Value == "" || strings.ContainsAny(key.Value, "=\x00") || strings.Contains(list[key.Value], "\x00") {
			v.At(key).Add("is no variable of an environment")
		}
	})
	return list
}

func path(v value) string {
	p := word(v)
	if !strings.HasPrefix(p, "/") {
		v.Bad("must begin with /")
	}
	return p
}

// span reads a time between two others.
func span(v value, least, most time.Duration) time.Duration {
	d, err := time.ParseDuration(v.Value)
	if v.Kind != yaml.ScalarNode || err != nil || d < least || d > most {
		v.Bad(fmt.Sprintf("must be a time such as 90s or 5m, at least %v and at most %v", least, most))
	}
	return d
}

// size reads a number of bytes above 0.
func size(v value) int64 {
	n, err := settings.ParseBytes(v.Value)
	if v.Kind != yaml.ScalarNode || err != nil || n < 1 || n > protocol.MaxRoom {
		v.Bad("must be a size such as 24GiB")
		return 0
	}
	return int64(n)
}
