// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdgate/holdgate/internal/admin/client"
)

func newWakeCommand() *cobra.Command {
	var flags adminFlags
	var span time.Duration
	cmd := &cobra.Command{
		Use:   "wake MODEL",
		Short: "Wake a model ahead of its traffic",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{errors.New("needs the model: holdgate wake MODEL")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if span <= 0 || span > time.Hour {
				return usageError{fmt.Errorf("--for is %v: must be above 0 and at most 1h", span)}
			}
			c, err := flags.client()
			if err != nil {
				return err
			}
			var out struct {
				WantedFor string `json:"wanted_for"`
			}
			call := client.Call{Method: http.MethodPost, Path: "/v1/wake/" + url.PathEscape(args[0]), Query: url.Values{"for": {span.String()}}}
			if err := c.JSON(cmd.Context(), call, &out); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is wanted for %s\n", args[0], out.WantedFor)
			return nil
		},
	}
	flags.register(cmd)
	cmd.ValidArgsFunction = completeModels(&flags)
	cmd.Flags().DurationVar(&span, "for", 5*time.Minute, "how long the model stays wanted, at most 1h")
	return cmd
}
