// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/holdgate/holdgate/internal/backend"
	"github.com/holdgate/holdgate/internal/settings"
)

// fileRules let messages show little of the file, since it may contain a secret by mistake in
// place of the name of the secret's file.
var fileRules = settings.Rules{Show: settings.Little, Brackets: true, NothingOK: true}

// ReadFile reads a YAML file: the backends, and values for flags, by name. It does not change
// flags that were set on the command line.
func (c *Serve) ReadFile(path string, flags *pflag.FlagSet) error {
	text, err := os.ReadFile(path) //nolint:gosec // the operator names the file
	if err != nil {
		return fmt.Errorf("reading the file: %w", err)
	}
	err = fileRules.Parse(text, func(top settings.Value) {
		top.Mapping(func(key *yaml.Node, v settings.Value) {
			if key.Value == "backends" {
				c.Backends = backend.Read(v)
			} else if err := setFlag(flags, key.Value, v.Node); err != nil {
				v.Add("%s", err.Error())
			}
		})
	})
	if err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	return nil
}

// parkVariable sets --admit-park-timeout.
const parkVariable = "HIVENET_ROUTER_ADMIT_PARK_TIMEOUT"

// ReadEnvironment sets the flag of an environment variable, unless the command line or a
// file has set it.
func ReadEnvironment(flags *pflag.FlagSet) error {
	value := os.Getenv(parkVariable) // an empty value counts as not set
	if value == "" || flags.Changed("admit-park-timeout") {
		return nil
	}
	if err := flags.Set("admit-park-timeout", value); err != nil {
		return fmt.Errorf("reading the environment variable %s: %w", parkVariable, err)
	}
	return nil
}

// unknown returns the error for an unknown name. It suggests the flag whose name differs only
// in dashes, underscores and case, if there is one.
func unknown(flags *pflag.FlagSet, name string) error {
	bare := strings.NewReplacer("-", "", "_", "")
	err := errors.New("is not a setting")
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name != "config" && strings.EqualFold(bare.Replace(f.Name), bare.Replace(name)) {
			err = fmt.Errorf("is not a setting: did you mean %s?", f.Name)
		}
	})
	return err
}

func setFlag(flags *pflag.FlagSet, name string, node *yaml.Node) error {
	flag := flags.Lookup(name)
	if flag == nil || name == "config" {
		return unknown(flags, name)
	}
	if flag.Changed {
		return nil
	}
	values := []*yaml.Node{node}
	if node.Kind == yaml.SequenceNode && flag.Value.Type() == "stringSlice" {
		values = node.Content
	}
	for _, v := range values {
		if v.Kind != yaml.ScalarNode {
			return errors.New("must be a single value")
		}
		if err := flags.Set(name, v.Value); err != nil {
			return err
		}
	}
	return nil
}
