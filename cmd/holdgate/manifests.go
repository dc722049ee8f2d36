// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/holdgate/holdgate/internal/manifest"
	"github.com/holdgate/holdgate/internal/settings"
)

// manifestFields maps fields of manifest.Config to flags.
var manifestFields = map[string]string{ //nolint:gosec // no secrets: names of flags
	"For":             "--for",
	"Destination":     "--destination",
	"Namespace":       "--namespace",
	"Gateway":         "--gateway",
	"Route":           "--route",
	"ExtProc":         "--extproc",
	"TLSSecret":       "--tls-secret",
	"Engines":         "--engines",
	"Example":         "--example",
	"MaxRequestBytes": "--max-request-bytes",
	"HoldMax":         "--hold-max",
}

// sharedFlags are the flags that a bootstrap and manifests have in common, manifestFlags
// those of manifests alone.
var (
	sharedFlags   = []string{"extproc", "extproc-insecure", "max-request-bytes", "hold-max", "output", "help"}
	manifestFlags = []string{"destination", "namespace", "gateway", "route", "tls-secret", "engines", "example"}
)

// addManifestFlags adds the flags of manifests.
func addManifestFlags(flags *pflag.FlagSet, c *manifest.Config) {
	flags.StringVar(&c.For, "for", "", "print Kubernetes manifests for this `gateway` instead of a bootstrap: "+strings.Join(manifest.Gateways(), ", "))
	flags.StringVar(&c.Destination, "destination", "", "with --for: how requests are sent on, `route or endpoint`, as given to holdgate serve (default route; for llm-d endpoint)")
	flags.StringVar(&c.Namespace, "namespace", "default", "with --for: `namespace` of the gateway and of what is printed")
	flags.StringVar(&c.Gateway, "gateway", "", "with --for: `name` of the Gateway")
	flags.StringVar(&c.Route, "route", "", "with --for: `name` of the HTTPRoute, or AIGatewayRoute, of the models")
	flags.StringVar(&c.TLSSecret, "tls-secret", "", "with --for: `name` of a Secret with the gateway's certificate for holdgate serve (tls.crt, tls.key) and the authorities of its certificate (ca.crt); needed with an --extproc that others can reach")
	flags.StringVar(&c.Engines, "engines", "", "with --for llm-d or --example: the engines' Service, which is also the label app of their pods, and their port, `NAME:PORT`")
	flags.BoolVar(&c.Example, "example", false, "with --for: also print a Gateway and an HTTPRoute")
}

// checkManifestFlags refuses flags that what is printed has no use for.
func checkManifestFlags(flags *pflag.FlagSet) error {
	var problems []error
	forGateway := flags.Changed("for")
	flags.Visit(func(f *pflag.Flag) {
		ours := slices.Contains(manifestFlags, f.Name)
		switch {
		case f.Name == "for" || slices.Contains(sharedFlags, f.Name):
		case ours && !forGateway:
			problems = append(problems, fmt.Errorf("--%s: is only for the manifests of --for", f.Name))
		case !ours && forGateway:
			problems = append(problems, fmt.Errorf("--%s: is only for a bootstrap, which --for does not print", f.Name))
		}
	})
	if err := errors.Join(problems...); err != nil {
		return usageError{err}
	}
	return nil
}

// renderManifests prints the manifests for c. Its errors name flags.
func renderManifests(cmd *cobra.Command, out string, c manifest.Config) error {
	text, err := manifest.Render(c)
	if problems, ok := errors.AsType[settings.Problems](err); ok {
		for i := range problems {
			problems[i].Path = manifestFields[problems[i].Path]
		}
		return usageError{problems}
	}
	if err != nil {
		return err
	}
	return writeOut(cmd, out, text)
}
