// SPDX-License-Identifier: Apache-2.0

package access

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/reload"
)

// newStore loads a file with this text.
func newStore(t *testing.T, text string) (store *Store, path string, log *bytes.Buffer) {
	t.Helper()
	path, log = filepath.Join(t.TempDir(), "keys.yaml"), &bytes.Buffer{}
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	store, err := Load(path, nil, reload.Options{Setting: "auth-file", Log: zerolog.New(log)})
	require.NoError(t, err)
	return store, path, log
}

func TestARevokedKeyStopsAtOnce(t *testing.T) {
	t.Parallel()
	file := func(keys ...string) string {
		text := "keys:\n"
		for _, k := range keys {
			text += "- {id: " + k + ", tenant: acme, key_hash: " + hashOf(k) + ", quota: {requests_per_minute: 5}}\n"
		}
		return text
	}
	store, path, log := newStore(t, file("alice", "bob"))
	held := []*Key{store.Current().ByID("alice"), store.Current().ByID("bob")}
	require.Equal(t, 5, spend(held[0], "any", 1, time.Now()))
	require.Equal(t, 5, spend(held[1], "any", 1, time.Now()))
	var ended []string
	store.OnChange(func(_, now *Keys) {
		for _, k := range held {
			if now.Renew(k) == nil {
				ended = append(ended, k.ID)
			}
		}
	})

	require.NoError(t, os.WriteFile(path, []byte(file("bob", "carol")), 0o600))
	require.NoError(t, store.Reload())
	require.Equal(t, []string{"alice"}, ended)
	_, ok := store.Current().Lookup("Bearer alice", "", time.Now())
	require.False(t, ok)
	bob, ok := store.Current().Lookup("Bearer bob", "", time.Now())
	require.True(t, ok)
	require.False(t, bob.Charge("any", 1, time.Now()).OK, "his tokens are still spent")
	require.Equal(t, 5, spend(store.Current().ByID("carol"), "any", 1, time.Now()))

	require.NoError(t, os.WriteFile(path, []byte("keys: [{tenant: acme, key_hash: hg-secret}]"), 0o600))
	kept := store.Current()
	require.ErrorContains(t, store.Reload(), path+": keys[0].key_hash: must be the SHA-256 hash")
	require.Same(t, kept, store.Current())
	require.Contains(t, log.String(), "keys[0].key_hash: must be the SHA-256 hash")
	require.NotContains(t, log.String(), "hg-secret")
}

func TestTheFirstKeysMustBeGood(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keys.yaml")
	require.NoError(t, os.WriteFile(path, []byte("keys: {}"), 0o600))
	_, err := Load(path, nil, reload.Options{Setting: "auth-file"})
	require.ErrorContains(t, err, "keys: must be a list, is a mapping (line 1)")
}

// Requests are looked up and charged while the file changes under them.
func TestReloadsUnderLoad(t *testing.T) {
	t.Parallel()
	file := func(i int) string {
		return one("id: a", fmt.Sprintf("name: version %d", i), "quota: {requests_per_minute: 100, per_model: {llama: {requests_per_minute_per_replica: 10}}}")
	}
	store, path, _ := newStore(t, file(0))
	start := time.Now()
	var group sync.WaitGroup
	good := make([]int, 4)
	for g := range good {
		group.Go(func() {
			for i := range 300 {
				k, ok := store.Current().Lookup("", "secret", start)
				if !ok {
					t.Error("the key is in every version")
					return
				}
				if k.Charge("llama", 1+i%3, start).OK {
					good[g]++
				}
			}
		})
	}
	for i := range 50 {
		next := path + ".next"
		require.NoError(t, os.WriteFile(next, []byte(file(i)), 0o600))
		require.NoError(t, os.Rename(next, path))
		require.NoError(t, store.Reload())
	}
	group.Wait()
	require.Equal(t, "version 49", store.Current().ByID("a").Name)
	total := 0
	for _, n := range good {
		total += n
	}
	require.GreaterOrEqual(t, total, 10)
	require.LessOrEqual(t, total, 30+1, "a reload earns at most what its own time does")
}
