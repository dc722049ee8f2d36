// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/net/http/httpguts"

	"github.com/holdgate/holdgate/agentreg/agent/engines"
	"github.com/holdgate/holdgate/agentreg/protocol"
	"github.com/holdgate/holdgate/internal/settings"
)

// maxTime is the longest duration in a file.
const maxTime = 365 * 24 * time.Hour

// setting is one setting of an engine: a flag of holdgate agent, a key of a model in
// the file of holdgate up, a key of a backend, or several of them.
type setting struct {
	flag    string // without its dashes
	declare func(*pflag.FlagSet)
	check   func() error         // the value of the flag; nil: any is valid
	key     string               // empty: it is a flag only
	read    func(settings.Value) // reads the key
}

// flagOf returns a setting that is a flag for a field of a Config, with its default, help
// and check.
func flagOf[T any](field *T, flag string, value T, help string, check func() error) setting {
	return setting{flag: flag, check: check, declare: func(f *pflag.FlagSet) {
		*field = value
		if list, ok := any(field).(*[]string); ok {
			f.StringArrayVar(list, flag, *list, help)
			return
		}
		settings.Flag(f, field, flag, help)
	}}
}

// inFile returns the setting with a key of a file, which read reads.
func (s setting) inFile(key string, read func(settings.Value)) setting {
	s.key, s.read = key, read
	return s
}

// settings returns the table of an engine's settings. Commands add the flags whose values
// are not stored in a Config as they are.
func (c *Config) settings() []setting {
	return []setting{
		flagOf(&c.Routers, "router", nil, "address of a router, as host:port or unix:///path (may repeat)", nil),
		flagOf(&c.TLS.On, "tls", false, "use TLS, with the system's authorities for the routers' certificates", nil),
		flagOf(&c.TLS.CAFile, "tls-ca-file", "", "use TLS, with the authorities in this file for the routers' certificates", nil),
		flagOf(&c.TLS.CertFile, "tls-cert-file", "", "client certificate for the routers", nil),
		flagOf(&c.TLS.KeyFile, "tls-key-file", "", "key of that certificate", nil),
		flagOf(&c.TLS.ServerName, "tls-server-name", "", "name that the routers' certificates must have (default: the host of --router)", nil),

		flagOf(&c.ID, "id", "", "name of this agent (default: the host's name and the first model, or the engine's port)",
			func() error { return protocol.CheckName(c.ID) }),
		flagOf(&c.Engine, "engine", engines.Custom, engines.Names(), func() error { return checkEngine(c.Engine) }).
			inFile("engine", func(v settings.Value) { c.Engine = v.Checked(checkEngine) }),
		flagOf(&c.BackendURL, "backend-url", "", "where the engine listens, as http://host:port; host 0.0.0.0: the address from which the agent connects to the routers",
			func() error { return onlyError(parseBackend(c.BackendURL)) }).
			inFile("url", func(v settings.Value) {
				c.BackendURL = v.Checked(func(s string) error { return onlyError(parseRemote(s)) })
			}),
		flagOf(&c.HealthPath, "health-path", "", "path that answers 2xx when the engine can serve (default: the engine's own)", c.checkHealthPath).
			inFile("health_path", c.readHealthPath),
		flagOf(&c.UnhealthyAfter, "unhealthy-after", DefaultUnhealthyAfter, "how many failed checks in a row take the engine out of routing; one good one brings it back",
			func() error { return atLeast(0, c.UnhealthyAfter, "must be at least 1, is %d") }),
		setting{declare: func(f *pflag.FlagSet) {
			const help = "have the engine answer one token before it is registered (default: true for llm of ollama and sglang)"
			f.VarPF(optionalBool{&c.Warmup}, "warmup", "", help).NoOptDefVal = "true"
		}}.
			inFile("warmup", func(v settings.Value) { c.Warmup = new(v.Bool()) }),

		flagOf(&c.Models, "model", nil, "name of a model that the engine serves (may repeat; default without --exec: those that the engine names)", nil).
			inFile("models", c.readModels),
		flagOf(&c.Kinds, "capability", nil, "llm, embedding or reranker (may repeat; default: llm, for infinity and tei embedding)", nil),
		flagOf(&c.Slots, "capacity", 1, "how many requests the engine takes at once", c.checkSlots).
			inFile("slots", func(v settings.Value) { c.Slots = int(v.Number(protocol.MaxSlots)) }),
		flagOf(&c.Region, "region", "", "region of the engine", c.checkRegion).
			inFile("region", func(v settings.Value) { c.Region = v.Name() }),
		setting{}.inFile("labels", c.readLabels),

		flagOf(&c.Dir, "exec-dir", "", "working directory of the engine", func() error { return CheckDir(c.Dir) }).
			inFile("dir", func(v settings.Value) {
				c.Dir = v.Word()
				v.Check(CheckDir(c.Dir))
			}),
		flagOf(&c.Env, "exec-env", nil, "NAME=value for the engine's environment (may repeat)", nil).
			inFile("env", c.readEnv),
		timeOf(&c.IdleTimeout, "idle-timeout", 0, "stop the engine after it was idle for this long (default: never)").
			inFile("idle_timeout", readTime(&c.IdleTimeout, time.Second)),
		timeOf(&c.MinUpTime, "min-up-time", 0, "shortest time that the engine serves before it is stopped (default: 30s, or --idle-timeout if that is shorter)").
			inFile("min_up_time", readTime(&c.MinUpTime, 0)),
		timeOf(&c.WakeTimeout, "wake-timeout", DefaultWakeTimeout, "how long the engine may take to become ready").
			inFile("wake_timeout", readTime(&c.WakeTimeout, time.Second)),
		timeOf(&c.StopGrace, "stop-grace", DefaultStopGrace, "how long the engine has between SIGTERM and SIGKILL"),
		timeOf(&c.DrainTimeout, "drain-timeout", DefaultDrainTimeout, "how long running requests may take before an engine of --exec is stopped when the agent ends"),

		flagOf(&c.Group.Name, "group", "", "name of a group of agents that cannot all be awake at once, such as a GPU", nil).
			inFile("group", func(v settings.Value) { c.Group.Name = v.Name() }),
		flagOf(&c.Group.MaxAwake, "group-max-awake", 0, "how many agents of the group may be awake at once (default: 1)", nil).
			inFile("max_awake", func(v settings.Value) { c.Group.MaxAwake = int(v.Number(protocol.MaxSlots)) }),
		flagOf((*settings.Bytes)(&c.Group.TotalMemory), "group-memory", 0, "memory that the awake agents of the group may use together, instead of a number; needs --memory", nil),
		flagOf((*settings.Bytes)(&c.Group.Memory), "memory", 0, "how much of --group-memory this agent uses while it is awake", nil).
			inFile("memory", func(v settings.Value) { c.Group.Memory = v.Size(protocol.MaxRoom) }),

		setting{}.inFile("host", func(v settings.Value) { c.Host = v.Checked(CheckHost) }),
		setting{}.inFile("pool", func(v settings.Value) { c.Pool = v.Bool() }),
		setting{}.inFile("health_model", func(v settings.Value) { c.HealthModel = v.Bool() }),
	}
}

// Flags declares the flags of the table, which set fields of c.
func (c *Config) Flags(f *pflag.FlagSet) {
	for _, s := range c.settings() {
		if s.declare != nil {
			s.declare(f)
		}
	}
}

// optionalBool is a boolean flag whose value stays nil if it is not given.
type optionalBool struct{ value **bool }

func (m optionalBool) Set(s string) error {
	b, err := strconv.ParseBool(s)
	if err != nil {
		return errors.New("must be true or false")
	}
	*m.value = &b
	return nil
}

func (m optionalBool) String() string { return "" }

func (m optionalBool) Type() string { return "bool" }

// IsBoolFlag makes pflag show the value in the help as that of a boolean flag.
func (m optionalBool) IsBoolFlag() bool { return true }

// Keys returns the functions that read these keys of a file into c.
func (c *Config) Keys(keys ...string) map[string]func(settings.Value) {
	fields := map[string]func(settings.Value){}
	for _, s := range c.settings() {
		if slices.Contains(keys, s.key) {
			fields[s.key] = s.read
		}
	}
	return fields
}

// timeOf returns a setting that is a flag for a duration, which must not be negative.
func timeOf(field *time.Duration, flag string, value time.Duration, help string) setting {
	return flagOf(field, flag, value, help, func() error { return atLeast(0, *field, "must not be negative, is %v") })
}

func readTime(field *time.Duration, least time.Duration) func(settings.Value) {
	return func(v settings.Value) { *field = ReadTime(v, least, maxTime) }
}

// ReadTime reads a duration between least and most.
func ReadTime(v settings.Value, least, most time.Duration) time.Duration {
	return v.Duration(least, most, fmt.Sprintf("must be a time such as 90s or 5m, at least %v and at most %v", least, most))
}

func atLeast[T int | time.Duration](least, value T, format string) error {
	if value < least {
		return fmt.Errorf(format, value)
	}
	return nil
}

func onlyError(_ any, err error) error { return err }

func checkEngine(name string) error { return onlyError(engines.Find(name)) }

// CheckHost returns an error if host is not valid as a Host header.
func CheckHost(host string) error {
	if host == "" || !httpguts.ValidHostHeader(host) {
		return fmt.Errorf("must be a host, with or without a port, is %q", host)
	}
	return nil
}
