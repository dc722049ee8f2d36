// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/holdgate/holdgate/internal/access"
	"github.com/holdgate/holdgate/internal/reload"
	"github.com/holdgate/holdgate/internal/shared"
	"github.com/holdgate/holdgate/internal/shared/valkeytest"
)

// patientQuotas are the quotas of one router, whose calls may take long.
type patientQuotas struct {
	ctx  context.Context
	c    *shared.Client
	id   string
	last []access.Left
}

func (p *patientQuotas) run(do, key string, limits []access.Limit) (left []access.Left, err error) {
	keys := []string{p.c.Spread("quota", hashOf(key))}
	p.last, err = readLeft(quota.RunSlowly(p.ctx, p.c, keys, quotaArgs(do, p.id, limits)), len(limits))
	return slices.Clone(p.last), err
}

func (p *patientQuotas) Charge(key string, limits []access.Limit, answered func([]access.Left, error)) {
	answered(p.run("charge", key, limits))
}

func (p *patientQuotas) Peek(key string, limits []access.Limit) ([]access.Left, error) {
	return p.run("peek", key, limits)
}

func (p *patientQuotas) Routers() int { return 3 }

// close reports whether the result of a request depends on the rounding of what is left.
func (p *patientQuotas) close() bool {
	whole := func(n float64) bool { return math.Abs(n-math.Round(n)) < 1e-6 }
	for _, l := range p.last {
		if whole(l.Tokens) || whole((1-l.Tokens)*60/l.PerMinute) {
			return true
		}
	}
	return false
}

// keysFile is a keys file, and the stores that have read it.
type keysFile struct {
	t      require.TestingT
	path   string
	stores []*access.Store
}

func (f *keysFile) write(all, perReplica int) {
	text := fmt.Sprintf("keys: [{id: k, tenant: t, key_hash: %x, quota: {requests_per_minute: %d, per_model: {llama: {requests_per_minute_per_replica: %d}}}}]",
		sha256.Sum256([]byte("secret")), all, perReplica)
	require.NoError(f.t, os.WriteFile(f.path, []byte(text), 0o600))
	for _, s := range f.stores {
		require.NoError(f.t, s.Reload())
	}
}

// load returns a store of the file, whose quotas are counted by a limiter.
func (f *keysFile) load(limiter access.Limiter) *access.Store {
	s, err := access.Load(f.path, limiter, reload.Options{Setting: "auth-file", Log: zerolog.Nop()})
	require.NoError(f.t, err)
	f.stores = append(f.stores, s)
	return s
}

// TestTheScriptCountsLikeARouterAlone: each answer of the script is the one of a router that
// counts alone, also when buckets have ended, and when the file changes.
func TestTheScriptCountsLikeARouterAlone(t *testing.T) {
	server := valkeytest.StartMemory(t)
	c := server.Router(nil)
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		server.Empty()
		now := time.Now().Add(time.Hour).Truncate(time.Millisecond) // after the changes of the file
		file := &keysFile{t: rt, path: filepath.Join(dir, "keys.yaml")}
		draw := func(what string, from, to int) int { return rapid.IntRange(from, to).Draw(rt, what) }
		file.write(draw("per minute", 1, 40), draw("per replica", 1, 20))
		alone := file.load(nil)
		limiters := make([]*patientQuotas, draw("routers", 1, 3))
		routers := make([]*access.Store, len(limiters))
		for i := range limiters {
			limiters[i] = &patientQuotas{ctx: t.Context(), c: c, id: fmt.Sprint("router-", i)}
			routers[i] = file.load(limiters[i])
		}
		replicas := draw("replicas", 0, 3)
		for range draw("steps", 1, 60) {
			d := time.Duration(rapid.OneOf(rapid.IntRange(0, 5000), rapid.IntRange(50_000, 70_000)).Draw(rt, "ms")) * time.Millisecond
			change := draw("file", 0, 20) == 0
			if change {
				file.write(draw("per minute", 1, 40), draw("per replica", 1, 20))
				d = 0
			}
			now = now.Add(d)
			server.SetTime(now, d)
			i := draw("router", 0, len(routers)-1)
			if len(routers) == 1 { // a smaller number of another router does not count at once
				replicas = draw("replicas", 0, 3)
			}
			if change { // the script learns of it with the next request for the model
				replicas = max(1, replicas)
			}
			want := alone.Current().ByID("k").Peek("llama", replicas, now)
			got := routers[i].Current().ByID("k").Peek("llama", replicas, now)
			if want != got && limiters[i].close() {
				return
			}
			require.Equal(rt, want, got)
			require.Equal(rt, want, alone.Current().ByID("k").Charge("llama", replicas, now))
			require.Equal(rt, want, routers[i].Current().ByID("k").Charge("llama", replicas, now))
		}
	})
}

// What is left is computed with further: a number that is none, or too large, is no answer.
func TestAnAnswerThatIsNoNumberIsAnError(t *testing.T) {
	t.Parallel()
	server := valkeytest.Start(t)
	c := server.Router(nil)
	echo := shared.NewScript("test", "return ARGV")
	for _, answer := range [][]string{
		{"nan", "60"},
		{"inf", "60"},
		{"-inf", "60"},
		{"-1", "60"},
		{"61", "60"},
		{"1", "nan"},
		{"1", "inf"},
		{"1", "0"},
		{"1", "2e9"},
		{"", "60"},
		{"1", ""},
		{"1"},
		{"1", "60", "1"},
	} {
		_, err := readLeft(echo.RunSlowly(t.Context(), c, []string{c.Key("x")}, answer), 1)
		require.Error(t, err, "%q", answer)
	}
	left, err := readLeft(echo.RunSlowly(t.Context(), c, []string{c.Key("x")}, []string{"59.5", "60"}), 1)
	require.NoError(t, err)
	require.Equal(t, []access.Left{{Tokens: 59.5, PerMinute: 60}}, left)
}
