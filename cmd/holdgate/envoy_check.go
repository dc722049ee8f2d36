// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/internal/policy"
	"github.com/holdgate/holdgate/internal/settings"
)

func newEnvoyCheckCommand() *cobra.Command {
	var (
		o       envoy.CheckOptions
		asJSON  bool
		maxBody = settings.Bytes(envoy.DefaultMaxRequestBytes)
	)
	cmd := &cobra.Command{
		Use:   "check FILE|URL",
		Short: "Report what in an Envoy would break held requests",
		Long: "Check reads a bootstrap or a config dump from a file (- is standard input), or a\n" +
			"config dump from the admin interface of a running Envoy (http://host:port or\n" +
			"unix:///path), and prints what would break held requests. It fails when there is\n" +
			"such a thing. The real Envoy validates a bootstrap when there is one\n" +
			"(HOLDGATE_ENVOY, else PATH).",
		Args: oneSetup,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.MaxRequestBytes = int64(maxBody)
			if err := validCheckOptions(o); err != nil {
				return usageError{err}
			}
			text, err := readSetup(cmd, args[0])
			if err != nil {
				return err
			}
			return checkSetup(cmd, text, o, asJSON)
		},
	}
	flags := cmd.Flags()
	flags.DurationVar(&o.Budget, "wake-hold-budget", 5*time.Minute, "longest hold, as given to holdgate serve")
	flags.Var(&maxBody, "max-request-bytes", "largest body, as given to holdgate serve")
	flags.StringVar(&o.IdentityMetadata, "identity-metadata", "", "`namespace` that says who sent a request, as given to holdgate serve")
	flags.StringVar(&o.Destination, "destination", "", "how requests are sent on: replica, route or endpoint; what the settings look like without it")
	flags.StringVar(&o.Filter, "filter", "", "`name` of holdgate's ext_proc filter; without it that whose name, cluster or metadata namespaces say holdgate")
	flags.BoolVar(&asJSON, "json", false, "print the findings as JSON")
	return cmd
}

func validCheckOptions(o envoy.CheckOptions) error {
	if o.Budget <= 0 {
		return fmt.Errorf("--wake-hold-budget: must be above 0, is %v", o.Budget)
	}
	if o.MaxRequestBytes <= 0 {
		return errors.New("--max-request-bytes: must be above 0")
	}
	if o.IdentityMetadata != "" {
		if _, err := envoy.IdentityPath(o.IdentityMetadata); err != nil {
			return fmt.Errorf("--identity-metadata: %w", err)
		}
	}
	if o.Destination != "" {
		if err := policy.CheckDestination(o.Destination); err != nil {
			return fmt.Errorf("--destination: %w", err)
		}
	}
	return nil
}

// oneSetup checks the arguments of envoy check.
func oneSetup(cmd *cobra.Command, args []string) error {
	if len(args) == 1 {
		return nil
	}
	return usageError{fmt.Errorf("%s takes one file, - for standard input, or the URL of a running Envoy's admin interface", cmd.CommandPath())}
}

// readSetup reads a file, standard input, or the config dump of a running Envoy.
func readSetup(cmd *cobra.Command, from string) ([]byte, error) {
	if strings.HasPrefix(from, "http://") || strings.HasPrefix(from, "https://") || strings.HasPrefix(from, "unix://") {
		return envoy.ReadDump(cmd.Context(), from)
	}
	if from == "-" {
		return readAll(cmd.InOrStdin(), "standard input", envoy.MaxDumpBytes)
	}
	f, err := os.Open(from) //nolint:gosec // the user names the file.
	if _, port, hostErr := net.SplitHostPort(from); errors.Is(err, os.ErrNotExist) && hostErr == nil && port != "" {
		return nil, usageError{fmt.Errorf("there is no file %s; to check a running Envoy, use http://%s", from, from)}
	}
	if err != nil {
		return nil, fmt.Errorf("reading the bootstrap: %w", err)
	}
	defer func() { _ = f.Close() }()
	return readAll(f, from, envoy.MaxDumpBytes)
}

// readAll reads at most limit bytes.
func readAll(from io.Reader, name string, limit int64) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(from, limit+1))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	if int64(len(text)) > limit {
		return nil, fmt.Errorf("reading %s: it has more than %d bytes", name, limit)
	}
	return text, nil
}

// checkSetup prints the findings about a setup and returns an error if one of them is an
// error.
func checkSetup(cmd *cobra.Command, text []byte, o envoy.CheckOptions, asJSON bool) error {
	setup, err := envoy.ReadSetup(text)
	if err != nil {
		return err
	}
	report := envoy.Check(setup, o)
	if asJSON {
		if err := json.MarshalWrite(cmd.OutOrStdout(), report, jsontext.Multiline(true)); err != nil {
			return fmt.Errorf("writing the findings: %w", err)
		}
		fmt.Fprintln(cmd.OutOrStdout())
		return findingsError(report)
	}
	out := cmd.OutOrStdout()
	fmt.Fprintf(out, "checked for the destination %s\n", report.Destination)
	for _, f := range report.Findings {
		fmt.Fprintln(out, f)
	}
	if !setup.Running() {
		err = validateBootstrap(cmd.Context(), out, text)
	}
	if err := errors.Join(findingsError(report), err); err != nil {
		return err
	}
	fmt.Fprintln(out, "ok")
	return nil
}

// findingsError returns an error if a report has errors.
func findingsError(r *envoy.Report) error {
	if n := r.Count(envoy.Error); n > 0 {
		return fmt.Errorf("%d of the settings would break held requests", n)
	}
	return nil
}

// validateBootstrap runs Envoy, if it is installed, to validate a bootstrap.
func validateBootstrap(ctx context.Context, out io.Writer, text []byte) error {
	binary, err := envoy.Find(ctx)
	if errors.Is(err, envoy.ErrNoBinary) {
		fmt.Fprintf(out, "not validated: %v\n", err)
		return nil
	}
	if err != nil {
		return err
	}
	if err := binary.Validate(ctx, text); err != nil {
		return err
	}
	fmt.Fprintf(out, "valid for Envoy %s\n", binary.Version)
	return nil
}
