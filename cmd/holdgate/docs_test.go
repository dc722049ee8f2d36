// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite docs/cli.md")

const docsHead = `# Commands

Made from the program by ` + "`go test ./cmd/holdgate -run TestTheDocs -update`" + `.

## Exit codes

| code | meaning |
| --- | --- |
| 0 | the command did what it was told; a command that runs until Ctrl-C or SIGTERM was ended by it |
| 1 | it failed: the router refused the call or did not answer, a file is not valid, a process ended |
| 2 | the command line or the settings are wrong; nothing was done |

## Output

Bars and colors are for terminals. A pipe or a file gets neither, a terminal with ` + "`TERM=dumb`" + ` neither, and one with ` + "`NO_COLOR`" + ` set to anything gets bars without colors. Characters of names that are not printed, or that change the direction of text, are shown by their numbers, such as ` + "`\\u{1b}`" + `, and in JSON as ` + "`\\u001b`" + `. Tables may get further columns; scripts should read ` + "`-o json`" + `, which is the answer of the admin API as it is. ` + "`holdgate completion`" + ` makes the completion for a shell: ` + "`source <(holdgate completion bash)`" + `. It completes models by asking the router.

## Which router

The commands that call a router take its address from ` + "`--admin`" + `. Without it they use the one router that this user runs on this machine: ` + "`serve`" + `, also below ` + "`up`" + `, writes a file with the address of its admin API below ` + "`$XDG_RUNTIME_DIR/holdgate/`" + ` and keeps a lock on it while it runs. Only regular files in a folder of this user count, which nobody else may write. A file without a lock is left by a router that was killed: it does not count, and the next router removes it. If several routers run, ` + "`--admin`" + ` must choose one (exit code 2); if there is none, or no ` + "`XDG_RUNTIME_DIR`" + `, the address is ` + usualAdmin + `. A unix socket is named unix:///path. ` + "`--token-file`" + ` names a file with the token, if the API needs one.
`

// TestTheDocsListEveryCommand compares docs/cli.md with the commands.
func TestTheDocsListEveryCommand(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString(docsHead)
	root := newRootCommand()
	for _, cmd := range root.Commands() {
		section(&b, cmd)
	}
	file := filepath.Join("..", "..", "docs", "cli.md")
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o644))
	}
	have, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, b.String(), string(have), "run go test ./cmd/holdgate -run TestTheDocs -update")
}

// section writes the section of a command, and of its subcommands.
func section(b *strings.Builder, cmd *cobra.Command) {
	if cmd.Hidden {
		return
	}
	text := cmd.Short
	if cmd.Long != "" {
		text += ". " + strings.TrimSuffix(strings.Join(strings.Fields(cmd.Long), " "), ".")
	}
	fmt.Fprintf(b, "\n## `%s`\n\n%s.\n", strings.TrimSuffix(cmd.UseLine(), " [flags]"), text)
	if path := cmd.CommandPath(); path == "holdgate serve" || path == "holdgate check" {
		b.WriteString("\nIts flags are in [configuration.md](configuration.md#holdgate-serve).\n")
		return
	}
	var rows []string
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		rows = append(rows, row(f))
	})
	if len(rows) > 0 {
		b.WriteString("\n| flag | default | meaning |\n| --- | --- | --- |\n" + strings.Join(rows, ""))
	}
	for _, sub := range cmd.Commands() {
		section(b, sub)
	}
}

// row returns the row of a flag.
func row(f *pflag.Flag) string {
	kind, usage := pflag.UnquoteUsage(f)
	name := "--" + f.Name
	if f.Shorthand != "" {
		name = "-" + f.Shorthand + ", " + name
	}
	if kind != "" {
		name += " " + kind
	}
	value := f.DefValue
	switch value {
	case "", "[]", "false":
		value = ""
	default:
		value = fmt.Sprintf("%#q", value)
	}
	return fmt.Sprintf("| %#q | %s | %s |\n", name, value, strings.ReplaceAll(usage, "|", `\|`))
}
