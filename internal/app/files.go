// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"fmt"

	"github.com/holdgate/holdgate/internal/access"
	"github.com/holdgate/holdgate/internal/config"
	"github.com/holdgate/holdgate/internal/enginekey"
	"github.com/holdgate/holdgate/internal/hop"
	"github.com/holdgate/holdgate/internal/policy"
	"github.com/holdgate/holdgate/internal/reload"
)

// watchedFile is a file that is reloaded when it changes.
type watchedFile interface {
	Watch(ctx context.Context)
	Reload() error
}

// loadFiles loads the files of keys, secrets and policies that the configuration names.
func (a *App) loadFiles(metrics *reload.Metrics) error {
	var err error
	if path := a.c.AuthFile; path != "" {
		a.keys, err = access.Load(path, a.limiter(), reload.Options{
			Setting: "auth-file", Metrics: metrics, Log: a.log,
		})
		if err != nil {
			return err // it names the flag
		}
		a.watched = append(a.watched, a.keys)
	}
	if path := a.c.HopSecretFile; path != "" {
		if a.secrets, err = hop.Load(path, a.c.SiteID); err != nil {
			return fmt.Errorf("--hop-secret-file: %w", err)
		}
	}
	if path := a.c.PolicyFile; path != "" {
		parse := func(text []byte, _ *policy.Policy) (*policy.Policy, error) { return policy.Parse(text) }
		a.policy, err = reload.Load(path, parse, reload.Options{Setting: "policy-file", Metrics: metrics, Log: a.log})
		if err != nil {
			return err // it names the flag
		}
		a.watched = append(a.watched, a.policy)
	}
	if a.relayCAs, err = relayCAs(a.c.RelayCAFile); err != nil {
		return fmt.Errorf("--relay-ca-file: %w", err)
	}
	a.warnOfSilentHolds()
	if path := a.c.EngineAuthFile; path != "" {
		a.engines, err = enginekey.Load(path, reload.Options{Setting: "engine-auth-file", Metrics: metrics, Log: a.log})
		if err != nil {
			return err // it names the flag
		}
		for _, file := range a.engines.Current().Files() {
			if warning := config.Exposed("--engine-auth-file", file); warning != "" {
				a.log.Warn().Msg(warning)
			}
		}
		a.watched = append(a.watched, a.engines)
	}
	return nil
}
