// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"fmt"
	"io"
	"net/http"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/holdgate/holdgate/internal/admin/client"
	"github.com/holdgate/holdgate/internal/pause"
)

// viewFlags are the flags of the commands that show an answer of a router.
type viewFlags struct {
	adminFlags

	output string
	asJSON bool
	watch  bool
	every  time.Duration // of watch
}

func (f *viewFlags) register(cmd *cobra.Command) {
	f.adminFlags.register(cmd)
	cmd.Flags().StringVarP(&f.output, "output", "o", "table", "table or json: the answer as the router gave it")
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "the same as -o json")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp))
}

// registerWatch adds the flag of the commands that can show an answer again and again.
func (f *viewFlags) registerWatch(cmd *cobra.Command) {
	f.every = 2 * time.Second
	cmd.Flags().BoolVarP(&f.watch, "watch", "w", false, "show it again every 2 seconds, until Ctrl-C; with -o json one line each")
}

// check returns an error if the flags make no sense.
func (f *viewFlags) check() error {
	if f.asJSON {
		f.output = "json"
	}
	if f.output != "table" && f.output != "json" {
		return usageError{fmt.Errorf("--output: %q is not known: use table or json", f.output)}
	}
	return nil
}

// show makes a call and prints the response, as JSON or with the function table; with --watch until
// ctx ends. Only the first call may fail.
func show[T any](cmd *cobra.Command, f *viewFlags, call client.Call, table func(io.Writer, *T)) error {
	if err := f.check(); err != nil {
		return err
	}
	c, err := f.client()
	if err != nil {
		return err
	}
	out := newScreen(cmd.OutOrStdout())
	if !f.watch {
		return showOnce(cmd.Context(), c, f, call, out, table)
	}
	return repeat(cmd, f.every, func() error { return showOnce(cmd.Context(), c, f, call, out, table) })
}

// repeat makes calls, with a pause after each, until the command is ended. It returns the error of
// the first call, and prints those of the others.
func repeat(cmd *cobra.Command, wait time.Duration, call func() error) error {
	for first := true; ; first = false {
		err := call()
		switch {
		case cmd.Context().Err() != nil:
			return nil //nolint:nilerr // the user has ended the command
		case err != nil && first:
			return err
		case err != nil:
			fmt.Fprintln(newScreen(cmd.ErrOrStderr()), "holdgate:", err)
		}
		if !pause.For(cmd.Context(), wait) {
			return nil
		}
	}
}

func showOnce[T any](ctx context.Context, c *client.Client, f *viewFlags, call client.Call, out *screen, table func(io.Writer, *T)) error {
	answer, err := c.Do(ctx, call)
	if err != nil {
		return err
	}
	if f.output == "json" {
		return printJSON(out.out, answer.Body, f.watch)
	}
	var v T
	if err := json.Unmarshal(answer.Body, &v); err != nil {
		return fmt.Errorf("reading the router's answer: %w", err)
	}
	if f.watch {
		out.clear()
		fmt.Fprintf(out, "%s\n\n", time.Now().Format(time.TimeOnly))
	}
	table(out, &v)
	if f.watch && !out.bars {
		fmt.Fprintln(out)
	}
	return nil
}

// printJSON prints a JSON text, on one line or indented. Control characters are escaped in it.
func printJSON(out io.Writer, body []byte, line bool) error {
	text := jsontext.Value(body)
	format := text.Indent
	if line {
		format = text.Compact
	}
	if err := format(); err != nil {
		return fmt.Errorf("reading the router's answer: %w", err)
	}
	if _, err := fmt.Fprintf(out, "%s\n", printable(text)); err != nil {
		return fmt.Errorf("printing: %w", err)
	}
	return nil
}

// printable returns a JSON text with escapes in place of the characters that are not printed and
// that JSON allows in strings: some of them steer terminals.
func printable(text []byte) []byte {
	var b []byte
	for _, r := range string(text) {
		if r < unicode.MaxASCII || unicode.IsPrint(r) {
			b = utf8.AppendRune(b, r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			b = fmt.Appendf(b, `\u%04x`, unit)
		}
	}
	return b
}

// completeModels completes the name of a model with those of the router.
func completeModels(f *adminFlags) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), time.Second)
		defer cancel()
		names, err := modelNames(ctx, f)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

func modelNames(ctx context.Context, f *adminFlags) (names []string, err error) {
	c, err := f.client()
	if err != nil {
		return nil, err
	}
	var status struct {
		Models []struct {
			Model string `json:"model"`
		} `json:"models"`
	}
	if err := c.JSON(ctx, client.Call{Method: http.MethodGet, Path: "/v1/status"}, &status); err != nil {
		return nil, err
	}
	for _, m := range status.Models {
		names = append(names, m.Model)
	}
	return names, nil
}
