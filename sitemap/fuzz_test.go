// SPDX-License-Identifier: Apache-2.0

package sitemap

import (
	"os"
	"path/filepath"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// FuzzParse: no input panics; what is accepted has a canonical form that is
// accepted as the same map; what is not has a reason in clean text.
func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/bad/*.json", "testdata/good/*.json"} {
		files, err := filepath.Glob(pattern)
		require.NoError(f, err)
		require.NotEmpty(f, files)
		for _, file := range files {
			data, err := os.ReadFile(file)
			require.NoError(f, err)
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := Parse(data, here)
		if err != nil {
			var problems Problems
			require.ErrorAs(t, err, &problems)
			require.NotEmpty(t, problems)
			for _, p := range problems {
				require.NotEmpty(t, p.Message)
				require.True(t, utf8.ValidString(p.String()), "%q", p)
				require.NotContains(t, p.String(), "\n")
				require.Less(t, len(p.String()), 2000)
			}
			return
		}
		again, err := Parse(m.JSON(), here)
		require.NoError(t, err)
		require.Equal(t, m.ETag(), again.ETag())
		require.Equal(t, m, again)
	})
}
