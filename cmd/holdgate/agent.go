// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
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
	"github.com/holdgate/holdgate/internal/config"
	"github.com/holdgate/holdgate/internal/enginekey"
	"github.com/holdgate/holdgate/internal/regular"
	"github.com/holdgate/holdgate/internal/settings"
)

// agentFlags has the flags whose values are not stored in an agent.Config as they are.
type agentFlags struct {
	tokenFile, apiKeyFile, exec string
	labels                      []string
	logFormat, logLevel         string
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
			// Closing the terminal ends the agent like Ctrl-C.
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGHUP)
			defer stop()
			cfg.Begun = func() {
				notifyReady(log)
				context.AfterFunc(ctx, func() { notifyStopping(log) })
			}
			return agent.Run(ctx, cfg)
		},
	}
	fs := cmd.Flags()
	cfg.Flags(fs)
	fs.StringVar(&f.tokenFile, "token-file", "", "file with the token for the routers")
	fs.StringVar(&f.apiKeyFile, "api-key-file", "", "file that contains only the engine's API key, for health, models, warm-up and signals; requests carry that of serve's --engine-auth-file")
	fs.StringArrayVar(&f.labels, "label", nil, "name=value for policies (may repeat)")
	fs.StringVar(&f.exec, "exec", "", "command that starts the engine, split into words like in a shell but run without one")
	fs.StringVar(&f.logFormat, "log-format", config.LogText, "text or json")
	fs.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
	return cmd
}

// complete sets the fields of cfg that depend on agentFlags. It returns all problems.
func (f *agentFlags) complete(fs *pflag.FlagSet, cfg *agent.Config) error {
	var p settings.Problems
	f.readExec(&p, cfg)
	if len(cfg.Exec) > 0 && !fs.Changed("min-up-time") {
		cfg.MinUpTime = agent.MinUpTimeFor(cfg.IdleTimeout)
	}
	if fs.Changed("group-max-awake") && cfg.Group.MaxAwake < 1 {
		p.Add("--group-max-awake", "must be at least 1, is %d", cfg.Group.MaxAwake)
	}
	cfg.Labels = map[string]string{}
	for _, l := range f.labels {
		name, value, ok := strings.Cut(l, "=")
		if _, twice := cfg.Labels[name]; !ok || name == "" || twice {
			p.Add("--label", "must be name=value, each name once, is %q", l)
		}
		cfg.Labels[name] = value
	}
	cfg.Token = f.token
	_, err := cfg.Token()
	p.Check("", err) // it names the flag
	if f.apiKeyFile != "" {
		cfg.APIKey, err = enginekey.Read(f.apiKeyFile)
		p.Check("--api-key-file", err)
	}
	if cfg.ID == "" {
		host, err := os.Hostname()
		if err != nil {
			p.Add("--id", "reading the host's name: %s", err)
		}
		cfg.ID = host + "-" + engineName(cfg)
	}
	return p.Err()
}

// readExec reads the command of --exec and checks that it can be run.
func (f *agentFlags) readExec(p *settings.Problems, cfg *agent.Config) {
	words, err := shellquote.Split(f.exec)
	cfg.Exec = words
	switch {
	case err != nil:
		p.Check("--exec", err)
	case len(words) == 0 && f.exec != "":
		p.Add("--exec", "names no command")
	case len(words) == 0:
	default:
		if err := agent.CheckDir(cfg.Dir); err != nil {
			p.Check("--exec-dir", err)
		} else {
			p.Check("--exec", agent.CheckProgram(words[0], cfg.Dir))
		}
	}
}

// engineName returns a name that distinguishes the engine from others on the same host.
func engineName(cfg *agent.Config) string {
	if len(cfg.Models) > 0 {
		return cfg.Models[0]
	}
	if u, err := url.Parse(cfg.BackendURL); err == nil && u.Port() != "" {
		return u.Port()
	}
	return cfg.Engine
}

// token reads the file of --token-file. It must be a regular file, unlike that of other
// commands: reading a named pipe could block the agent's start.
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

// readToken reads a file with one token. If path is empty, it returns "".
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
