// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"os"
	"slices"

	"github.com/rs/zerolog"

	"github.com/holdgate/holdgate/internal/access"
	"github.com/holdgate/holdgate/internal/audit"
	"github.com/holdgate/holdgate/internal/backend"
	"github.com/holdgate/holdgate/internal/certs"
	"github.com/holdgate/holdgate/internal/config"
	"github.com/holdgate/holdgate/internal/decision"
	"github.com/holdgate/holdgate/internal/enginekey"
	"github.com/holdgate/holdgate/internal/hop"
	"github.com/holdgate/holdgate/internal/policy"
	"github.com/holdgate/holdgate/internal/regular"
	"github.com/holdgate/holdgate/internal/reload"
	"github.com/holdgate/holdgate/internal/wake"
	"github.com/holdgate/holdgate/sitemap"
)

// Check reads every file that a configuration names, changes nothing, and returns all
// problems, each with the flag that names the file.
func Check(c *config.Serve) error {
	var errs []error
	check := func(flag, path string, read func(path string) error) {
		if path == "" {
			return
		}
		if err := read(path); err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", flag, err))
		}
	}
	parsed := func(parse func([]byte) error) func(string) error {
		return func(path string) error {
			text, err := os.ReadFile(path) //nolint:gosec // the operator names the file
			if err != nil {
				return fmt.Errorf("reading the file: %w", err)
			}
			return parse(text)
		}
	}
	tokens := func(path string) error {
		_, err := config.ReadTokens(path)
		return err
	}
	check("admin-token-file", c.AdminTokenFile, tokens)
	check("agents-token-file", c.AgentsTokenFile, tokens)
	for _, f := range []certs.Files{extProcCerts(c), agentCerts(c), kedaCerts(c)} {
		if f.Cert.Path != "" {
			_, err := certs.Load(f, reload.Options{Log: zerolog.Nop()})
			errs = append(errs, err) // it names the flag
		}
	}
	var placed *sitemap.Map
	check("map-file", c.MapFile, func(path string) error {
		text, _, err := regular.Read(path, 2*sitemap.MaxBytes)
		if errors.Is(err, fs.ErrNotExist) || err == nil && len(text) == 0 {
			return nil // serve creates it
		}
		if err != nil {
			return fmt.Errorf("reading the file: %w", err)
		}
		placed, err = sitemap.Parse(text, c.SiteID)
		return err
	})
	check("ports-file", c.PortsFile, regular.Check)
	backends, err := backend.New(c.Backends)
	if err != nil {
		errs = append(errs, err)
	}
	var p *policy.Policy
	check("policy-file", c.PolicyFile, parsed(func(text []byte) (err error) {
		if p, err = policy.Parse(text); err == nil {
			err = shadowed(p, decision.Placements{Map: placed, Backends: backends}.Models())
		}
		return err
	}))
	check("auth-file", c.AuthFile, parsed(func(text []byte) error {
		keys, err := access.Parse(text)
		if err == nil {
			err = misnamed(p, keys.Models())
		}
		return err
	}))
	check("engine-auth-file", c.EngineAuthFile, parsed(func(text []byte) error {
		keys, err := enginekey.Parse(c.EngineAuthFile, text)
		if err == nil {
			err = misnamed(p, slices.Values([][]string{keys.Models()}))
		}
		return err
	}))
	check("hop-secret-file", c.HopSecretFile, func(path string) error {
		_, err := hop.Load(path, c.SiteID)
		return err
	})
	check("webhook-headers-file", c.WebhookHeadersFile, parsed(func(text []byte) error {
		_, err := wake.ParseHeaders(text)
		return err
	}))
	check("webhook-ca-file", c.WebhookCAFile, func(path string) error {
		_, err := wake.TLSFiles{CA: path}.Client()
		return err
	})
	check("relay-ca-file", c.RelayCAFile, func(path string) error {
		_, err := relayCAs(path)
		return err
	})
	check("shared-password-file", c.SharedPasswordFile, func(string) error { return sharedAddress(c).CheckFiles() })
	check("shared-ca-file", c.SharedCAFile, func(string) error { return sharedAddress(c).CheckFiles() })
	check("audit-file", c.AuditFile, audit.Check)
	check("webhook-cert-file", c.WebhookCertFile, func(path string) error {
		_, err := wake.TLSFiles{Cert: path, Key: c.WebhookKeyFile}.Client()
		return err
	})
	return errors.Join(errs...)
}

// shadowed returns an error for each alias that is also a model of the map or of a backend,
// since requests that name it never reach that model.
func shadowed(p *policy.Policy, models []string) error {
	var errs []error
	for _, model := range models {
		if to := p.Resolve(model); to != model {
			errs = append(errs, fmt.Errorf("models.%s.aliases: %s is a model of the map or of a backend, which no request could name", to, model))
		}
	}
	return errors.Join(errs...)
}

// misnamed returns an error for each alias in a list that does not have the alias's model: a
// request that names an alias is for the model, which is then not found in the list.
func misnamed(p *policy.Policy, lists iter.Seq[[]string]) error {
	wrong := map[string]error{}
	for list := range lists {
		for _, name := range list {
			if model := p.Resolve(name); !slices.Contains(list, model) {
				wrong[name] = fmt.Errorf("%s is an alias of model %s in --policy-file, and no request is for it: name %s", name, model, model)
			}
		}
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(wrong)) {
		errs = append(errs, wrong[name])
	}
	return errors.Join(errs...)
}
