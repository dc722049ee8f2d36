// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdgate/holdgate/internal/access"
	"github.com/holdgate/holdgate/internal/settings"
)

func newKeygenCommand() *cobra.Command {
	var e access.Entry
	cmd := &cobra.Command{
		Use:   "keygen --tenant TENANT",
		Short: "Make a key, and its entry for the keys file",
		Long: "Keygen prints a new key, which exists nowhere else, and the entry to put below\n" +
			"keys: in the file that holdgate serve --auth-file names. The entry has the key's\n" +
			"SHA-256 hash, from which the key cannot be derived.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if e.Tenant == "" {
				return usageError{errors.New("--tenant is required: who the key belongs to")}
			}
			// An entry without models would allow all models.
			if cmd.Flags().Changed("models") && len(e.Models) == 0 {
				return usageError{errors.New("--models: must not be empty")}
			}
			key := access.NewKey()
			text, err := e.YAML(key)
			if err != nil {
				return entryErrors(err)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n\n# The key above is not shown again. Its entry in the keys file:\n%s", key, text)
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&e.Tenant, "tenant", "", "who the key belongs to")
	flags.StringVar(&e.ID, "id", "", "the key's `name` in logs, metrics and quotas (default the first 8 digits of its hash)")
	flags.StringSliceVar(&e.Models, "models", nil, "the `models` that the key may use (default all)")
	return cmd
}

// entryErrors replaces names of fields in an error with names of flags.
func entryErrors(err error) error {
	problems, ok := errors.AsType[settings.Problems](err)
	if !ok {
		return err
	}
	flags := strings.NewReplacer("keys[0].", "--")
	for i, p := range problems {
		problems[i] = settings.Problem{Path: flags.Replace(p.Path), Message: flags.Replace(p.Message)}
	}
	return usageError{problems}
}
