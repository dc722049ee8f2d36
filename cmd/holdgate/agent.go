// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"unicode"

	"github.com/kballard/go-shellquote"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/holdgate/holdgate/agentreg/agent"
	"github.com/holdgate/holdgate/agentreg/agent/engines"
	"github.com/holdgate/holdgate/internal/config"
	"github.com/holdgate/holdgate/internal/enginekey"
	"github.com/holdgate/holdgate/internal/regular"
	"github.com/holdgate/holdgate/internal/settings"
)

// agentFlags are the flags that need work before they are an agent.Config.
type agentFlags struct {
	tokenFile, exec     string
	apiKeyFile          string
	labels              []string
	warmup              bool
	memory, groupMemory settings.Bytes
	logFormat, logLevel string
}

func newAgentCommand() *cobra.Command {
	var cfg agent.Config
	var f agentFlags
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Register an inference engine with the routers, and start it on demand",
		Example: `  holdgate agent --router 127.0.0.1:9002 --engine vllm --backend-url http://127.0.0.1:8000 \
    --model llama-3-70b --capability llm --capacity 16`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("warmup") {
				cfg.Warmup = &f.warmup
			}
			if err := f.complete(cmd.Flags(), &cfg); err != nil {
				return usageError{err}
			}
			log, err := config.Logger(cmd.ErrOrStderr(), f.logFormat, f.logLevel)
			if err != nil {
				return usageError{err}
			}
			if err := cfg.Validate(); err != nil {
				return usageError{err}
			}
			for flag, path := range map[string]string{"--token-file": f.tokenFile, "--api-key-file": f.apiKeyFile, "--tls-key-file": cfg.TLS.KeyFile} {
				if warning := config.Exposed(flag, path); warning != "" {
					log.Warn().Msg(warning)
				}
			}
			cfg.Log = log
			cfg.Stdout, cfg.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
			// A terminal that is closed ends the agent like Ctrl-C in it.
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGHUP)
			defer stop()
			return agent.Run(ctx, cfg)
		},
	}
	fs := cmd.Flags()
	fs.StringArrayVar(&cfg.Routers, "router", nil, "address of a router, as host:port or unix:///path (may repeat)")
	fs.StringVar(&f.tokenFile, "token-file", "", "file with the token for the routers")
	fs.BoolVar(&cfg.TLS.On, "tls", false, "speak TLS with the routers, whose certificates the system's authorities have signed")
	fs.StringVar(&cfg.TLS.CAFile, "tls-ca-file", "", "speak TLS with the routers, whose certificates the authorities in this file have signed")
	fs.StringVar(&cfg.TLS.CertFile, "tls-cert-file", "", "certificate to show to the routers")
	fs.StringVar(&cfg.TLS.KeyFile, "tls-key-file", "", "key of that certificate")
	fs.StringVar(&cfg.TLS.ServerName, "tls-server-name", "", "name that the routers' certificates must have (default: the host of --router)")
	fs.StringVar(&cfg.ID, "id", "", "name of this agent (default: the host's name and the first model, or the engine's port)")
	fs.StringVar(&cfg.Engine, "engine", engines.Custom, engines.Names())
	fs.StringVar(&cfg.BackendURL, "backend-url", "", "where the engine listens, as http://host:port; host 0.0.0.0: the address that the routers see")
	fs.StringVar(&cfg.HealthPath, "health-path", "", "path that answers 2xx when the engine can serve (default: the engine's own)")
	fs.StringVar(&f.apiKeyFile, "api-key-file", "", "file with the key alone that the engine wants for health, models, warm-up and signals; requests carry that of serve's --engine-auth-file")
	fs.IntVar(&cfg.UnhealthyAfter, "unhealthy-after", agent.DefaultUnhealthyAfter, "how many failed checks in a row take the engine out of routing; one good one brings it back")
	fs.BoolVar(&f.warmup, "warmup", false, "have the engine answer one token before it is registered (default: true for llm of ollama and sglang)")
	fs.StringArrayVar(&cfg.Models, "model", nil, "name of a model that the engine serves (may repeat; default without --exec: those that the engine names)")
	fs.StringArrayVar(&cfg.Kinds, "capability", nil, "llm, embedding or reranker (may repeat; default: llm, for infinity and tei embedding)")
	fs.IntVar(&cfg.Slots, "capacity", 1, "how many requests the engine takes at once")
	fs.StringVar(&cfg.Region, "region", "", "where the engine stands")
	fs.StringArrayVar(&f.labels, "label", nil, "name=value for policies (may repeat)")
	fs.StringVar(&f.exec, "exec", "", "command that starts the engine, split like a shell would, without a shell")
	fs.StringVar(&cfg.Dir, "exec-dir", "", "working directory of the engine")
	fs.StringArrayVar(&cfg.Env, "exec-env", nil, "NAME=value for the engine's environment (may repeat)")
	fs.DurationVar(&cfg.IdleTimeout, "idle-timeout", 0, "stop the engine when it was idle for so long (default: never)")
	fs.DurationVar(&cfg.MinUpTime, "min-up-time", 0, "how long the engine serves at least before it is stopped (default: 30s, or --idle-timeout if that is shorter)")
	fs.StringVar(&cfg.Group.Name, "group", "", "name of a group of agents that cannot all be awake at once, such as a GPU")
	fs.IntVar(&cfg.Group.MaxAwake, "group-max-awake", 0, "how many agents of the group may be awake at once (default: 1)")
	fs.Var(&f.groupMemory, "group-memory", "what awake agents of the group may take together, instead of a number; needs --memory")
	fs.Var(&f.memory, "memory", "what this agent takes of --group-memory while it is awake")
	fs.DurationVar(&cfg.WakeTimeout, "wake-timeout", agent.DefaultWakeTimeout, "how long the engine may take to become ready")
	fs.DurationVar(&cfg.StopGrace, "stop-grace", agent.DefaultStopGrace, "how long the engine has between SIGTERM and SIGKILL")
	fs.DurationVar(&cfg.DrainTimeout, "drain-timeout", agent.DefaultDrainTimeout, "how long running requests may keep an engine of --exec when the agent is to end")
	fs.StringVar(&f.logFormat, "log-format", config.LogText, "text or json")
	fs.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
	return cmd
}

// complete fills cfg from the flags that are not part of it as they are. It
// names every problem at once.
func (f *agentFlags) complete(fs *pflag.FlagSet, cfg *agent.Config) error {
	var errs []error
	words, err := shellquote.Split(f.exec)
	switch {
	case err != nil:
		errs = append(errs, fmt.Errorf("--exec: %w", err))
	case len(words) == 0 && f.exec != "":
		errs = append(errs, errors.New("--exec: names no command"))
	}
	cfg.Exec = words
	if len(words) > 0 {
		errs = append(errs, checkCommand(words[0], cfg.Dir))
	}
	errs = append(errs, f.completeGroup(fs, cfg))
	cfg.Labels = map[string]string{}
	for _, l := range f.labels {
		name, value, ok := strings.Cut(l, "=")
		if _, twice := cfg.Labels[name]; !ok || name == "" || twice {
			errs = append(errs, fmt.Errorf("--label: must be name=value, each name once, is %q", l))
		}
		cfg.Labels[name] = value
	}
	cfg.Token = f.token
	if _, err := cfg.Token(); err != nil {
		errs = append(errs, err)
	}
	if f.apiKeyFile != "" {
		if cfg.APIKey, err = enginekey.Read(f.apiKeyFile); err != nil {
			errs = append(errs, fmt.Errorf("--api-key-file: %w", err))
		}
	}
	if cfg.ID == "" {
		host, err := os.Hostname()
		if err != nil {
			errs = append(errs, fmt.Errorf("--id: reading the host's name: %w", err))
		}
		cfg.ID = host + "-" + engineName(cfg)
	}
	return errors.Join(errs...)
}

// checkCommand checks what the engine is started with.
func checkCommand(program, dir string) error {
	if err := agent.CheckDir(dir); err != nil {
		return fmt.Errorf("--exec-dir: %w", err)
	}
	if err := agent.CheckProgram(program, dir); err != nil {
		return fmt.Errorf("--exec: %w", err)
	}
	return nil
}

// engineName is what tells the engine from others of the same host.
func engineName(cfg *agent.Config) string {
	if len(cfg.Models) > 0 {
		return cfg.Models[0]
	}
	if u, err := url.Parse(cfg.BackendURL); err == nil && u.Port() != "" {
		return u.Port()
	}
	return cfg.Engine
}

// completeGroup fills in when the engine may be stopped and with whom it shares
// its room.
func (f *agentFlags) completeGroup(fs *pflag.FlagSet, cfg *agent.Config) error {
	if !fs.Changed("min-up-time") && len(cfg.Exec) > 0 {
		cfg.MinUpTime = agent.MinUpTimeFor(cfg.IdleTimeout)
	}
	cfg.Group.TotalMemory, cfg.Group.Memory = int64(f.groupMemory), int64(f.memory)
	if fs.Changed("group-max-awake") && cfg.Group.MaxAwake < 1 {
		return fmt.Errorf("--group-max-awake: must be at least 1, is %d", cfg.Group.MaxAwake)
	}
	return nil
}

// token reads the file of --token-file. Commands that end may read a named pipe; an
// agent may not, for it would hang the start.
func (f *agentFlags) token() (string, error) {
	if err := regular.Check(f.tokenFile); err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	token, err := readToken(f.tokenFile)
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	return token, nil
}

// readToken reads a file with one token; no file name gives no token.
func readToken(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	b, err := os.ReadFile(path) //nolint:gosec // the user's choice
	if err != nil {
		return "", fmt.Errorf("reading the token: %w", err)
	}
	token := strings.TrimSpace(string(b))
	if token == "" || strings.ContainsFunc(token, func(c rune) bool { return c > unicode.MaxASCII || c <= ' ' }) {
		return "", fmt.Errorf("%s must hold one token of printable ASCII characters", path)
	}
	return token, nil
}
