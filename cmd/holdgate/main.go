// SPDX-License-Identifier: Apache-2.0

// Command holdgate holds requests for models that are scaled to zero, behind an Envoy proxy,
// until a replica serves the model.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// After the first signal the default handling is restored: a second one ends the program.
	context.AfterFunc(ctx, stop)
	err := newRootCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "holdgate:", err)
		os.Exit(exitCode(err))
	}
}

// usageError is the error of an invalid command line or invalid settings. Its exit code is 2.
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
	addCommands(root, newServeCommand(), newUpCommand(), newAgentCommand(), newEnvoyCommand(), newCheckCommand(), newMapCommand(), newWakeCommand(), newExplainCommand(), newStatusCommand(), newHoldsCommand(), newAgentsCommand(), newEventsCommand(), newKeygenCommand(), newVersionCommand())
	return root
}

// addCommands adds subcommands to a command. Without a subcommand the command prints its
// help. An unknown subcommand is an error; cobra itself would print the help and exit with 0.
func addCommands(cmd *cobra.Command, subcommands ...*cobra.Command) {
	cmd.AddCommand(subcommands...)
	cmd.Args = cobra.ArbitraryArgs
	cmd.DisableFlagsInUseLine = true
	cmd.SuggestionsMinimumDistance = 2 // edits; cobra sets it at the root only
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		text := fmt.Sprintf("%s has no command %q", cmd.CommandPath(), args[0])
		if names := cmd.SuggestionsFor(args[0]); len(names) > 0 {
			text += "; is " + strings.Join(names, " or ") + " meant?"
		}
		return usageError{fmt.Errorf("%s; see '%s --help'", text, cmd.CommandPath())}
	}
}

// noArgs checks the arguments of commands that take only flags.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return usageError{fmt.Errorf("%s takes flags only, not %q; see '%s --help'", cmd.CommandPath(), args[0], cmd.CommandPath())}
}

// oneFile checks the arguments of commands that read one file.
func oneFile(cmd *cobra.Command, args []string) error {
	if len(args) == 1 {
		return nil
	}
	return usageError{fmt.Errorf("%s takes one file, or - for standard input", cmd.CommandPath())}
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintln(cmd.OutOrStdout(), "holdgate", version)
		},
	}
}
