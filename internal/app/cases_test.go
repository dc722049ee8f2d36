// SPDX-License-Identifier: Apache-2.0

package app

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every case of docs/cases.md and every line of docs/many-routers.md names tests that exist, or
// says why there is none.
func TestTheCasesNameTestsThatExist(t *testing.T) {
	t.Parallel()
	const root = "../.."
	tests := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != root || d.Name() == "node_modules"):
			return fs.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		pkg, err := filepath.Rel(root, filepath.Dir(path))
		for _, f := range declared.FindAllStringSubmatch(string(text), -1) {
			tests[filepath.ToSlash(pkg)+"."+f[1]] = true
		}
		return err
	}))
	for _, document := range []string{"cases.md", "many-routers.md"} {
		text, err := os.ReadFile(filepath.Join(root, "docs", document))
		require.NoError(t, err)
		requireProof(t, document, string(text), tests)
	}
}

// requireProof requires that each row of the tables whose last column is "proved by" names
// tests there that exist, or says why there is none.
func requireProof(t *testing.T, document, text string, tests map[string]bool) {
	t.Helper()
	named := regexp.MustCompile("`([a-z0-9/]+\\.(?:Test|Fuzz)\\w+)`")
	rows, proved := 0, false
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		last := strings.TrimSpace(cells[len(cells)-1])
		switch {
		case !strings.HasPrefix(line, "| "):
			proved = false
			continue
		case last == "proved by":
			proved = true
			continue
		case !proved || strings.HasPrefix(last, "---"):
			continue
		}
		rows++
		found := named.FindAllStringSubmatch(last, -1)
		for _, f := range found {
			require.True(t, tests[f[1]], "docs/%s names %s, which does not exist", document, f[1])
		}
		said := strings.Contains(last, "not yet") || strings.Contains(last, "by design otherwise, because")
		require.True(t, said || len(found) > 0, "docs/%s says of nothing that proves it: %s", document, line)
	}
	require.Greater(t, rows, 10, document)
}
