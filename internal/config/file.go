// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// ReadFile sets every flag that the command line did not set from a YAML file
// whose keys are the flags' names.
func ReadFile(path string, flags *pflag.FlagSet) error {
	text, err := os.ReadFile(path) //nolint:gosec // the operator names the file
	if err != nil {
		return fmt.Errorf("reading the configuration: %w", err)
	}
	var values map[string]yaml.Node
	dec := yaml.NewDecoder(strings.NewReader(string(text)))
	if err := dec.Decode(&values); err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	if dec.Decode(&yaml.Node{}) == nil {
		return fmt.Errorf("reading %s: must hold one YAML document", path)
	}
	var errs []error
	for name, node := range values {
		if err := setFlag(flags, name, node); err != nil {
			errs = append(errs, fmt.Errorf("%s:%d: %s: %w", path, node.Line, name, err))
		}
	}
	return errors.Join(errs...)
}

// parkVariable sets --admit-park-timeout.
const parkVariable = "HIVENET_ROUTER_ADMIT_PARK_TIMEOUT"

// ReadEnvironment sets what may be set by an environment variable and was set
// neither by the command line nor by a file.
func ReadEnvironment(flags *pflag.FlagSet) error {
	value, there := os.LookupEnv(parkVariable)
	if !there || flags.Changed("admit-park-timeout") {
		return nil
	}
	if err := flags.Set("admit-park-timeout", value); err != nil {
		return fmt.Errorf("reading the environment variable %s: %w", parkVariable, err)
	}
	return nil
}

func setFlag(flags *pflag.FlagSet, name string, node yaml.Node) error {
	flag := flags.Lookup(name)
	if flag == nil || name == "config" {
		return errors.New("is not a setting")
	}
	if flag.Changed {
		return nil
	}
	values := []*yaml.Node{&node}
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
