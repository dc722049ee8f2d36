// SPDX-License-Identifier: Apache-2.0

// Command holdgate holds the requests for models that are scaled to zero, behind
// an Envoy proxy, until an agent for the model registers.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal ends the program at once, as it does without a handler.
	context.AfterFunc(ctx, stop)
	err := newRootCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "holdgate:", err)
		os.Exit(exitCode(err))
	}
}

// usageError is a command line that cannot be carried out.
type usageError struct{ error }

func exitCode(err error) int {
	if _, ok := errors.AsType[usageError](err); ok {
		return 2
	}
	return 1
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "holdgate",
		Version:       version,
		Short:         "Hold requests for sleeping models behind Envoy",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetVersionTemplate("holdgate {{.Version}}\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w; see '%s --help'", err, cmd.CommandPath())}
	})
	root.AddCommand(newServeCommand(), newUpCommand(), newAgentCommand(), newEnvoyCommand(), newCheckCommand(), newMapCommand(), newWakeCommand(), newExplainCommand(), newStatusCommand(), newKeygenCommand(), newVersionCommand())
	return root
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintln(cmd.OutOrStdout(), "holdgate", version)
		},
	}
}
