// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestVersionIsACommandAndAFlag(t *testing.T) {
	t.Parallel()
	for _, arg := range []string{"version", "--version"} {
		var out bytes.Buffer
		root := newRootCommand()
		root.SetOut(&out)
		root.SetArgs([]string{arg})
		require.NoError(t, root.Execute())
		require.Equal(t, "holdgate dev\n", out.String())
	}
}

func TestUpNeedsOneFile(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"up"}, {"up", "a.yaml", "b.yaml"}, {"up", "a.yaml", "-f", "b.yaml"}} {
		root := newRootCommand()
		root.SetArgs(args)
		err := root.Execute()
		require.ErrorContains(t, err, "needs the file of the models, and one alone")
		require.Equal(t, 2, exitCode(err))
	}
	for _, args := range [][]string{{"up", "none.yaml"}, {"up", "-f", "none.yaml"}} {
		root := newRootCommand()
		root.SetArgs(args)
		require.ErrorContains(t, root.Execute(), "none.yaml: no such file")
	}
}

func TestWrongArgumentsAreNamed(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"statu":               `holdgate has no command "statu"; is status meant?; see 'holdgate --help'`,
		"envoy rendr":         `holdgate envoy has no command "rendr"; is render meant?; see 'holdgate envoy --help'`,
		"map":                 "",
		"serve now":           `holdgate serve takes flags only, not "now"; see 'holdgate serve --help'`,
		"map push m.json":     `holdgate map push takes flags only, not "m.json"; see 'holdgate map push --help'`,
		"envoy check":         "holdgate envoy check takes one file, - for standard input, or the URL of a running Envoy's admin interface",
		"map check a b":       "holdgate map check takes one file, or - for standard input",
		"check --config none": "--config: reading the file: open none: no such file or directory",
		"wake m --for 3h":     "--for is 3h0m0s: must be above 0 and at most 1h",
	} {
		root := newRootCommand()
		root.SetOut(&bytes.Buffer{})
		root.SetArgs(strings.Fields(line))
		err := root.Execute()
		if want == "" {
			require.NoError(t, err, line)
			continue
		}
		require.EqualError(t, err, want, line)
		require.Equal(t, 2, exitCode(err), line)
	}
}
