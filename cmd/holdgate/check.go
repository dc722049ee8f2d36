// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/holdgate/holdgate/internal/app"
	"github.com/holdgate/holdgate/internal/config"
)

func newCheckCommand() *cobra.Command {
	var c config.Serve
	var file string
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check the settings of holdgate serve and all files that they name",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := readSettings(cmd, &c, file); err != nil {
				return err
			}
			for _, warning := range app.Warnings(&c) {
				fmt.Fprintln(cmd.ErrOrStderr(), "warning: "+warning)
			}
			if err := app.Check(&c); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "ok")
			return nil
		},
	}
	serveFlags(cmd, &c, &file)
	return cmd
}
