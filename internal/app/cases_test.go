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

// Every case of docs/cases.md names tests that exist, or says why there is none.
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
	text, err := os.ReadFile(root + "/docs/cases.md")
	require.NoError(t, err)
	named := regexp.MustCompile("`([a-z0-9/]+\\.(?:Test|Fuzz)\\w+)`")
	rows := 0
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(cells[1], "---") || strings.HasPrefix(cells[1], "proved by") {
			continue
		}
		rows++
		require.Len(t, cells, 2, line)
		found := named.FindAllStringSubmatch(cells[1], -1)
		for _, f := range found {
			require.True(t, tests[f[1]], "docs/cases.md names %s, which does not exist", f[1])
		}
		said := strings.Contains(cells[1], "not yet") || strings.Contains(cells[1], "by design otherwise, because")
		require.True(t, said || len(found) > 0, "docs/cases.md says of nothing that proves it: %s", line)
	}
	require.Greater(t, rows, 50)
}
