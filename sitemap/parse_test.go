// SPDX-License-Identifier: Apache-2.0

package sitemap

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const here = "here"

var update = flag.Bool("update", false, "write testdata/bad/*.want from what Parse says; read the difference before keeping it")

// Each file in testdata/bad breaks one rule; the .want file beside it has one
// line per problem.
func TestBadMapsNameEveryProblemWithItsPath(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/bad/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(file)
			require.NoError(t, err)

			m, err := Parse(data, here)
			require.Nil(t, m)
			var problems Problems
			require.ErrorAs(t, err, &problems)
			var got strings.Builder
			for _, line := range problems.Lines() {
				fmt.Fprintln(&got, line)
			}

			want := strings.TrimSuffix(file, ".json") + ".want"
			if *update {
				require.NoError(t, os.WriteFile(want, []byte(got.String()), 0o600))
			}
			text, err := os.ReadFile(want)
			require.NoError(t, err)
			require.Equal(t, string(text), got.String())
		})
	}
}

// TestTheMapOfTheDocsIsGood reads the example that people copy.
func TestTheMapOfTheDocsIsGood(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/configuration.md")
	require.NoError(t, err)
	_, example, found := strings.Cut(string(text), "```json\n{\"generation\"")
	require.True(t, found)
	example, _, found = strings.Cut(example, "```")
	require.True(t, found)
	m, err := Parse([]byte(`{"generation"`+example), "site-fr-1")
	require.NoError(t, err)
	require.Equal(t, []string{"llama-3-70b"}, m.Holdable())
}

func TestGoodMapsComeBackTheSame(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/good/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(file)
			require.NoError(t, err)
			self := here
			if filepath.Base(file) == "design.json" {
				self = "site-fr-1"
			}
			m, err := Parse(data, self)
			require.NoError(t, err)
			again, err := Parse(m.JSON(), self)
			require.NoError(t, err)
			require.Equal(t, m, again)
		})
	}
}
