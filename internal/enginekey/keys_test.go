// SPDX-License-Identifier: Apache-2.0

package enginekey

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/reload"
)

const secret = "sk-the-engine-0123456789"

// folder has a file of keys with this text, and files of keys to name in it.
func folder(t *testing.T, text string) (path string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"engines.yaml": text, "good": secret + "\n", "empty": " \n", "two": "a\nb\n", "words": "a b", "odd": "a\x00b", "huge": strings.Repeat("x", maxKey+1),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return filepath.Join(dir, "engines.yaml")
}

func TestAModelsKeyComesFromItsFile(t *testing.T) {
	t.Parallel()
	path := folder(t, "models:\n  llama: {api_key_file: good}\n  tei: {api_key_file: ./good, header: X-API-Key}\n")
	absolute := filepath.Join(filepath.Dir(path), "good")
	require.NoError(t, os.WriteFile(path, []byte("models:\n  llama: {api_key_file: good}\n  tei: {api_key_file: "+absolute+", header: X-API-Key}\n"), 0o600))
	f, err := Load(path, reload.Options{Setting: "engine-auth-file"})
	require.NoError(t, err)
	for model, want := range map[string][2]string{
		"llama": {"authorization", "Bearer " + secret},
		"tei":   {"x-api-key", secret},
		"other": {},
	} {
		header, value := f.Current().Of(model)
		require.Equal(t, want, [2]string{header, value}, model)
	}
	require.Equal(t, []string{absolute}, f.Current().Files())
}

func TestABadFileIsRefusedWithoutWhatMayBeAKey(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{}":                             "needs models",
		"models: []":                     "models: must be a mapping",
		"models: {m: {}}":                "models.m: needs api_key_file",
		"models: {m: {api_key_file: 1}}": "models.m.api_key_file: must be a string",
		"models: {m: {api_key_file: " + secret + "}}":                "models.m.api_key_file: must name a file with the key: no such file or directory",
		"models: {m: {api_key_file: .}}":                             "models.m.api_key_file: must name a file with the key: it is no regular file",
		"models: {m: {api_key_file: huge}}":                          "models.m.api_key_file: must name a file with the key: it is no regular file, or too large",
		"models: {m: {api_key_file: empty}}":                         "models.m.api_key_file: must name a file that contains only the key, on one line",
		"models: {m: {api_key_file: two}}":                           "models.m.api_key_file: must name a file that contains only the key",
		"models: {m: {api_key_file: words}}":                         "models.m.api_key_file: must name a file that contains only the key",
		"models: {m: {api_key_file: odd}}":                           "models.m.api_key_file: must name a file that contains only the key",
		"models: {m: {api_key_file: good, header: host}}":            "models.m.header: must be authorization (a bearer token) or x-api-key",
		"models: {m: {api_key: x}}":                                  "models.m.api_key: is not known",
		"models: {\"\": {api_key_file: good}}":                       "must not be empty",
		"models: {m: {api_key_file: good}, m: {api_key_file: good}}": "models.m: is given twice",
	} {
		_, err := Parse(folder(t, text), []byte(text))
		require.ErrorContains(t, err, want, text)
		require.NotContains(t, err.Error(), secret, text)
	}
	_, err := Parse("x", []byte("models: {m: {header: x}, n: {}}"))
	require.ErrorContains(t, err, "models.m.header")
	require.ErrorContains(t, err, "models.n: needs", "all problems at once")
}

func TestANewKeyIsInForceWhenItsFileChanges(t *testing.T) {
	t.Parallel()
	path := folder(t, "models: {m: {api_key_file: good}}")
	synctest.Test(t, func(t *testing.T) {
		f, err := Load(path, reload.Options{Setting: "engine-auth-file"})
		require.NoError(t, err)
		kept := f.Current()
		require.NoError(t, f.Reload())
		require.Same(t, kept, f.Current(), "nothing has changed")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go f.Watch(ctx)
		key := filepath.Join(filepath.Dir(path), "good")
		require.NoError(t, os.WriteFile(key, []byte("another"), 0o600))
		time.Sleep(3 * reload.Interval)
		synctest.Wait()
		_, value := f.Current().Of("m")
		require.Equal(t, "Bearer another", value)
		require.NoError(t, os.Remove(key))
		time.Sleep(3 * reload.Interval)
		synctest.Wait()
		_, value = f.Current().Of("m")
		require.Equal(t, "Bearer another", value, "a bad file keeps the old")
	})
}
