// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
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
