// SPDX-License-Identifier: Apache-2.0

package site_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"github.com/valkey-io/valkey-go"

	"github.com/holdgate/holdgate/internal/polltest"
	"github.com/holdgate/holdgate/internal/shared"
	"github.com/holdgate/holdgate/internal/shared/valkeytest"
	"github.com/holdgate/holdgate/internal/site"
	"github.com/holdgate/holdgate/internal/target"
	"github.com/holdgate/holdgate/sitemap"
)

// mapRouter is a router as far as the map goes.
type mapRouter struct {
	t      *testing.T
	client *shared.Client
	store  *sitemap.Store
	maps   *site.Maps
	log    *lines
}

// lines are the lines of a log.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), text)
}

// newMapRouter returns a router that runs until the test ends. before, which may be nil, is
// called with its store before it runs.
func newMapRouter(t *testing.T, server *valkeytest.Server, before func(*sitemap.Store)) *mapRouter {
	t.Helper()
	r := &mapRouter{t: t, store: sitemap.NewStore("here", nil), log: &lines{}}
	if before != nil {
		before(r.store)
	}
	r.client = server.Router(func(c *shared.Client) {
		r.maps = site.NewMaps(c, r.store, zerolog.New(r.log))
	})
	r.maps.Sync(t.Context())
	return r
}

// mapText is a map with a generation, none below 0, that places one model here.
func mapText(generation int, model string) []byte {
	number := ""
	if generation >= 0 {
		number = fmt.Sprintf(`"generation": %d, `, generation)
	}
	return fmt.Appendf(nil, `{%s"sites": [{"id": "b", "url": "https://b.example"}], "placements": [
		{"model": %q, "kind": "chat", "site": "here", "scale_from_zero": true}, {"model": %[2]q, "kind": "chat", "site": "b"}]}`, number, model)
}

func hintsText(model, state string, age time.Duration) []byte {
	return fmt.Appendf(nil, `{"hints": [{"model": %q, "kind": "chat", "site": "b", "state": %q, "observed_at": %q}]}`,
		model, state, time.Now().Add(-age).UTC().Format(time.RFC3339Nano))
}

func (r *mapRouter) push(generation int, model string) {
	r.t.Helper()
	_, err := r.store.PushIf(r.t.Context(), "", mapText(generation, model), false)
	require.NoError(r.t, err)
}

// model returns the model of the map in force, "" if there is none.
func (r *mapRouter) model() string {
	if m := r.store.Current(); m != nil {
		return m.Models()[0]
	}
	return ""
}

func (r *mapRouter) awaitModel(model string) {
	r.t.Helper()
	polltest.Until(r.t, "the map with "+model+" is in force", func() bool { return r.model() == model })
}

func TestAMapIsInForceOnAllRouters(t *testing.T) {
	server := valkeytest.Start(t)
	one, two, three := newMapRouter(t, server, nil), newMapRouter(t, server, nil), newMapRouter(t, server, nil)
	one.push(1, "warmup")
	two.awaitModel("warmup")
	three.awaitModel("warmup")
	begin := time.Now()
	one.push(7, "m")
	two.awaitModel("m")
	three.awaitModel("m")
	took := time.Since(begin)
	t.Logf("in force everywhere after %v", took)
	require.Less(t, took, 900*time.Millisecond, "by a message, not by a beat") // 100 ms on a machine with nothing else to do
	require.Equal(t, sitemap.SourcePushed, one.store.State().Source)
	require.Equal(t, sitemap.SourceShared, two.store.State().Source)
	require.Equal(t, one.store.Current().ETag(), two.store.Current().ETag())
	require.WithinDuration(t, one.store.State().ReceivedAt, two.store.State().ReceivedAt, time.Second)
	require.Equal(t, 2, three.log.count("sibling map of the site applied"))
	require.Zero(t, one.log.count("sibling map of the site applied"))
}

func TestTheRulesOfAPushAreThoseOfTheSite(t *testing.T) {
	server := valkeytest.Start(t)
	one := newMapRouter(t, server, nil)
	// The second router has no messages and no beats, so it does not know the shared map.
	late := sitemap.NewStore("here", nil)
	late.Share(one.maps)
	push := func(ifMatch string, text []byte, force bool) (sitemap.Summary, error) {
		return late.PushIf(t.Context(), ifMatch, text, force)
	}
	var mismatch *sitemap.MismatchError
	_, err := push("*", mapText(7, "a"), false)
	require.ErrorAs(t, err, &mismatch)
	require.Empty(t, mismatch.InForce)

	one.push(7, "a")
	tag := one.store.Current().ETag()
	var conflict *sitemap.ConflictError
	for _, generation := range []int{6, 7} {
		_, err = push("", mapText(generation, "b"), false)
		require.ErrorAs(t, err, &conflict)
		require.Equal(t, sitemap.ConflictError{Pushed: int64(generation), InForce: 7}, *conflict)
	}
	require.Nil(t, late.Current())
	for _, ifMatch := range []string{`"x"`, `"` + strings.Repeat("0", 64) + `"`, ","} {
		_, err = push(ifMatch, mapText(8, "b"), true)
		require.ErrorAs(t, err, &mismatch)
		require.Equal(t, tag, mismatch.InForce)
	}
	sum, err := push("", mapText(7, "a"), false)
	require.NoError(t, err)
	require.True(t, sum.Unchanged)
	require.Equal(t, []string{"a"}, late.Current().Models(), "in force at this router, too")
	sum, err = push(`"x", `+tag, mapText(8, "b"), false)
	require.NoError(t, err)
	require.False(t, sum.Unchanged)
	_, err = push("", mapText(-1, "without"), false)
	require.NoError(t, err)
	_, err = push("*", mapText(1, "after"), false)
	require.NoError(t, err)
	_, err = push("", mapText(0, "forced"), true)
	require.NoError(t, err)
	one.awaitModel("forced")
	largest := bytes.Replace(mapText(0, "largest"), []byte(`"generation": 0`), []byte(`"generation": 9223372036854775806`), 1)
	_, err = push("", largest, false)
	require.NoError(t, err)
	_, err = push("", bytes.Replace(largest, []byte("806"), []byte("805"), 1), false)
	require.ErrorAs(t, err, &conflict)
	_, err = push("", bytes.Replace(largest, []byte("806"), []byte("807"), 1), false)
	require.NoError(t, err)
	_, err = push("", largest, false)
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, int64(9223372036854775807), conflict.InForce)
}

// Of many pushes at once at three routers the highest generation is in force everywhere, and no
// router goes back.
func TestConcurrentPushesAtThreeRouters(t *testing.T) {
	server := valkeytest.Start(t)
	var mu sync.Mutex
	backwards := 0
	start := func() *mapRouter {
		r := &mapRouter{t: t, log: &lines{}}
		r.store = sitemap.NewStore("here", func(o, n *sitemap.Map) {
			mu.Lock()
			defer mu.Unlock()
			if o != nil && n.Generation() <= o.Generation() {
				backwards++
			}
		})
		r.client = server.Router(func(c *shared.Client) { r.maps = site.NewMaps(c, r.store, zerolog.Nop()) })
		return r
	}
	routers := []*mapRouter{start(), start(), start()}
	const pushes = 60
	accepted := make([]int, pushes)
	var writers sync.WaitGroup
	for i, r := range routers {
		writers.Go(func() {
			for n := range pushes {
				// Each generation has another content at each router: only one may be accepted.
				_, err := r.store.PushIf(t.Context(), "", mapText(n, fmt.Sprintf("m-%d-of-%d", n, i)), false)
				if err == nil {
					mu.Lock()
					accepted[n]++
					mu.Unlock()
				}
			}
		})
	}
	writers.Wait()
	for _, r := range routers {
		polltest.Until(t, "the same map everywhere", func() bool {
			return r.store.Current().ETag() == routers[0].store.Current().ETag()
		})
		require.EqualValues(t, pushes-1, r.store.Current().Generation())
	}
	for n, times := range accepted {
		require.LessOrEqual(t, times, 1, "generation %d", n)
	}
	require.Equal(t, 1, accepted[pushes-1])
	require.Zero(t, backwards)
}

func TestALateRouterHasTheMapAndItsHintsWithTheirAge(t *testing.T) {
	server := valkeytest.Start(t)
	one := newMapRouter(t, server, nil)
	one.push(7, "m")
	_, err := one.store.PushHints(t.Context(), hintsText("m", "warm", 10*time.Second))
	require.NoError(t, err)
	// The hints were received 15 seconds ago, by the clock of the server.
	require.NoError(t, one.client.DoSlowly(t.Context(), "test", func(b valkey.Builder) valkey.Completed {
		return b.Hset().Key(one.client.Key("map")).FieldValue().
			FieldValue("hints_at", fmt.Sprint(time.Now().Add(-15*time.Second).UnixMicro())).Build()
	}).Error())
	late := newMapRouter(t, server, nil)
	require.Equal(t, "m", late.model(), "before anything is served")
	require.Equal(t, sitemap.SourceShared, late.store.State().Source)
	q := sitemap.Query{Model: "m", Kind: target.Chat}
	state := func(after time.Duration) string {
		_, all := late.store.Current().Explain(q, time.Now().Add(after))
		return all[0].State
	}
	// They were not observed in the future of their receipt, so they are as old as their
	// receipt, and fresh for 15 more seconds.
	require.Equal(t, "warm", state(13*time.Second))
	require.Equal(t, "stale", state(16*time.Second))
}

func TestHintsOfAnyRouterAreInForceOnAll(t *testing.T) {
	server := valkeytest.Start(t)
	one, two := newMapRouter(t, server, nil), newMapRouter(t, server, nil)
	one.push(7, "m")
	// The map that the hints are for need not be in force at the router.
	sum, err := two.store.PushHints(t.Context(), hintsText("m", "warm", 0))
	require.NoError(t, err)
	require.Equal(t, sitemap.HintsSummary{Hints: 1, Warm: 1}, sum)
	polltest.Until(t, "the hints are in force", func() bool { return len(one.store.Current().Hints()) == 1 })
	require.Equal(t, sitemap.SourcePushed, one.store.State().Source, "the map is the same")
	require.Equal(t, one.store.Current().ETag(), two.store.Current().ETag())
	_, err = two.store.PushHints(t.Context(), []byte(`{"hints": [{"model": "m", "kind": "chat", "site": "zz", "state": "warm", "observed_at": "2026-11-29T12:00:00Z"}]}`))
	require.ErrorAs(t, err, new(sitemap.Problems))
	// A map brings its own hints, or none.
	one.push(8, "n")
	two.awaitModel("n")
	require.Empty(t, two.store.Current().Hints())
}

// Maps and hints that are pushed to different routers at once: hints are only ever in force with
// the map that they are for, and in the end all routers have the same.
func TestHintsAgainstMapsOfOtherRouters(t *testing.T) {
	server := valkeytest.Start(t)
	one, two := newMapRouter(t, server, nil), newMapRouter(t, server, nil)
	text := func(n int) []byte {
		return fmt.Appendf(nil, `{"generation": %d, "sites": [{"id": "s%[1]d", "url": "https://b.example"}],
			"placements": [{"model": "m", "kind": "chat", "site": "s%[1]d"}]}`, n)
	}
	_, err := one.store.PushIf(t.Context(), "", text(0), false)
	require.NoError(t, err)
	two.maps.Sync(t.Context())
	accepted := 0
	var writers sync.WaitGroup
	writers.Go(func() {
		for n := range 100 {
			if _, err := one.store.PushIf(t.Context(), "", text(n+1), false); err != nil {
				t.Error(err)
			}
		}
	})
	writers.Go(func() {
		for range 100 {
			n := two.store.Current().Generation()
			hints := fmt.Appendf(nil, `{"hints": [{"model": "m", "kind": "chat", "site": "s%d", "state": "warm", "observed_at": "2026-11-29T12:00:00Z"}]}`, n)
			if _, err := two.store.PushHints(t.Context(), hints); err == nil {
				accepted++
			}
			if m := two.store.Current(); len(m.Hints()) > 0 && m.Hints()[0].Site != fmt.Sprint("s", m.Generation()) {
				t.Errorf("hints of %s with generation %d", m.Hints()[0].Site, m.Generation())
			}
		}
	})
	writers.Wait()
	t.Logf("%d of 100 hints were for the map in force", accepted)
	_, err = two.store.PushHints(t.Context(), []byte(`{"hints": [{"model": "m", "kind": "chat", "site": "s100", "state": "warm", "observed_at": "2026-11-29T12:00:00Z"}]}`))
	require.NoError(t, err)
	polltest.Until(t, "the same everywhere", func() bool {
		return len(one.store.Current().Hints()) == 1 && one.store.Current().ETag() == two.store.Current().ETag()
	})
}

func TestALostMessageOfAMapIsMadeGood(t *testing.T) {
	server := valkeytest.Start(t)
	one, two := newMapRouter(t, server, nil), newMapRouter(t, server, nil)
	one.push(7, "m")
	two.awaitModel("m")
	// A message that nobody sends: the revision alone tells of the change.
	require.NoError(t, one.client.DoSlowly(t.Context(), "test", func(b valkey.Builder) valkey.Completed {
		return b.Hset().Key(one.client.Key("map")).FieldValue().FieldValue("revision", fmt.Sprint(time.Now().UnixMicro())).
			FieldValue("tag", "another").FieldValue("map", string(mapText(8, "quiet"))).Build()
	}).Error())
	begin := time.Now()
	two.awaitModel("quiet")
	t.Logf("made good after %v", time.Since(begin))
	require.Less(t, time.Since(begin), 3*shared.Beat)
}

func TestAMapThatCannotBeReadIsKeptOut(t *testing.T) {
	server := valkeytest.Start(t)
	one := newMapRouter(t, server, nil)
	one.push(7, "m")
	set := func(revision time.Time, tag, text string) {
		require.NoError(t, one.client.DoSlowly(t.Context(), "test", func(b valkey.Builder) valkey.Completed {
			return b.Hset().Key(one.client.Key("map")).FieldValue().FieldValue("revision", fmt.Sprint(revision.UnixMicro())).
				FieldValue("tag", tag).FieldValue("map", text).Build()
		}).Error())
	}
	const complaint = "run the same version on all routers"
	set(time.Now(), strings.Repeat("1", 32), `{"of": "a later version"}`)
	for range 3 {
		one.maps.Sync(t.Context())
	}
	polltest.Until(t, "it is logged", func() bool { return one.log.count(complaint) == 1 })
	set(time.Now(), strings.Repeat("1", 32), `{"of": "a later version"}`) // with other hints
	one.maps.Sync(t.Context())
	require.Equal(t, 1, one.log.count(complaint))
	require.Equal(t, "m", one.model())
	require.Equal(t, sitemap.SourcePushed, one.store.State().Source)
	_, err := one.store.PushHints(t.Context(), hintsText("m", "warm", 0))
	require.ErrorAs(t, err, new(*sitemap.UnreadableError))

	// A router that starts is without a map.
	late := newMapRouter(t, server, nil)
	require.Nil(t, late.store.Current())
	require.Equal(t, 1, late.log.count(complaint))
	set(time.Now(), strings.Repeat("2", 32), "\x28\xb5\x2f\xfd no zstd")
	late.maps.Sync(t.Context())
	require.Nil(t, late.store.Current())
	// The next map that can be read is in force again.
	_, err = late.store.PushIf(t.Context(), "", mapText(9, "n"), true)
	require.NoError(t, err)
	one.awaitModel("n")
}

func TestRoutersThatDecidedAloneAgreeOnTheHighestGeneration(t *testing.T) {
	for name, c := range map[string]struct {
		before     int // generation in force before the server went away; -2: none
		one, two   func(*mapRouter)
		want       string
		wantHolder int // whose map it is
	}{
		"the higher one":                     {before: 1, want: "two", one: func(r *mapRouter) { r.push(5, "one") }, two: func(r *mapRouter) { r.push(6, "two") }},
		"only one changed":                   {before: 1, want: "one", one: func(r *mapRouter) { r.push(5, "one") }, two: func(*mapRouter) {}},
		"none before":                        {before: -2, want: "two", one: func(r *mapRouter) { r.push(5, "one") }, two: func(r *mapRouter) { r.push(6, "two") }},
		"without generations, the later one": {before: 1, want: "two", one: func(r *mapRouter) { r.push(-1, "one") }, two: func(r *mapRouter) { r.push(-1, "two") }},
		"the same generation, the later one": {before: 1, want: "two", one: func(r *mapRouter) { r.push(5, "one") }, two: func(r *mapRouter) { r.push(5, "two") }},
		"forced over the one before": {before: 7, want: "one", one: func(r *mapRouter) {
			_, err := r.store.PushIf(r.t.Context(), "", mapText(5, "one"), true)
			require.NoError(r.t, err)
		}, two: func(*mapRouter) {}},
		"forced, and a higher one": {before: 7, want: "two", one: func(r *mapRouter) {
			_, err := r.store.PushIf(r.t.Context(), "", mapText(5, "one"), true)
			require.NoError(r.t, err)
		}, two: func(r *mapRouter) { r.push(8, "two") }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := valkeytest.Start(t)
			one, two := newMapRouter(t, server, nil), newMapRouter(t, server, nil)
			if c.before != -2 {
				one.push(c.before, "before")
				two.awaitModel("before")
			}
			server.Stop()
			c.one(one)
			// Which one was later is told as exactly as a call to the server is fast.
			begin := time.Now()
			polltest.Until(t, "time has passed", func() bool { return time.Since(begin) > 300*time.Millisecond })
			c.two(two)
			require.Equal(t, sitemap.SourcePushed, one.store.State().Source)
			server.Restart()
			one.awaitModel(c.want)
			two.awaitModel(c.want)
			late := newMapRouter(t, server, nil)
			require.Equal(t, c.want, late.model())
		})
	}
}

func TestTheServerIsGivenTheMapAgain(t *testing.T) {
	server := valkeytest.Start(t)
	one, two := newMapRouter(t, server, nil), newMapRouter(t, server, nil)
	one.push(7, "m")
	two.awaitModel("m")
	_, err := one.store.PushHints(t.Context(), hintsText("m", "warm", 0))
	require.NoError(t, err)
	polltest.Until(t, "the hints are in force", func() bool { return len(two.store.Current().Hints()) == 1 })
	require.NoError(t, one.client.DoSlowly(t.Context(), "test", func(b valkey.Builder) valkey.Completed {
		return b.Del().Key(one.client.Key("map")).Build()
	}).Error())
	polltest.Until(t, "the server has the map", func() bool {
		n, err := one.client.DoSlowly(t.Context(), "test", func(b valkey.Builder) valkey.Completed {
			return b.Exists().Key(one.client.Key("map")).Build()
		}).AsInt64()
		return err == nil && n == 1
	})
	late := newMapRouter(t, server, nil)
	require.Equal(t, "m", late.model())
	require.Len(t, late.store.Current().Hints(), 1)
	require.Equal(t, sitemap.SourcePushed, one.store.State().Source)
	require.Equal(t, sitemap.SourceShared, two.store.State().Source)
}

// restoredFrom returns a function that gives a store the map of a file.
func restoredFrom(t *testing.T, generation int, model string) func(*sitemap.Store) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "map.json")
	require.NoError(t, os.WriteFile(path, mapText(generation, model), 0o600))
	return func(s *sitemap.Store) {
		require.NoError(t, s.Restore(path))
		s.Persist(path)
	}
}

func TestARestoredMapLosesTies(t *testing.T) {
	for name, c := range map[string]struct {
		pushed, restored int
		want             string
	}{
		"the same generation":         {7, 7, "pushed"},
		"a lower one":                 {7, 6, "pushed"},
		"a higher one":                {7, 8, "restored"},
		"pushed without a generation": {-1, 8, "pushed"},
		"restored without one":        {7, -1, "pushed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := valkeytest.Start(t)
			one := newMapRouter(t, server, nil)
			one.push(c.pushed, "pushed")
			late := newMapRouter(t, server, restoredFrom(t, c.restored, "restored"))
			require.Equal(t, c.want, late.model())
			one.awaitModel(c.want)
		})
	}
}

// A router that was away while a lower generation was forced does not bring back the higher
// one, also when the server has lost everything since.
func TestARestoredMapDoesNotUndoAForcedOne(t *testing.T) {
	server := valkeytest.Start(t)
	one := newMapRouter(t, server, nil)
	one.push(9, "bad")
	_, err := one.store.PushIf(t.Context(), "", mapText(5, "good"), true)
	require.NoError(t, err)
	require.Equal(t, "good", newMapRouter(t, server, restoredFrom(t, 9, "bad")).model())
	one.push(6, "better")
	require.Equal(t, "better", newMapRouter(t, server, restoredFrom(t, 9, "bad")).model())
	require.NoError(t, one.client.DoSlowly(t.Context(), "test", func(b valkey.Builder) valkey.Completed {
		return b.Del().Key(one.client.Key("map")).Build()
	}).Error())
	one.maps.Sync(t.Context())
	require.Equal(t, "better", newMapRouter(t, server, restoredFrom(t, 9, "bad")).model())
	require.Equal(t, "newest", func() string {
		one.push(10, "newest")
		return newMapRouter(t, server, restoredFrom(t, 9, "bad")).model()
	}())
}

func TestARestoredMapIsSharedUntilOneIsPushed(t *testing.T) {
	server := valkeytest.Start(t)
	one := newMapRouter(t, server, restoredFrom(t, 7, "old"))
	require.Equal(t, sitemap.SourceRestored, one.store.State().Source)
	two := newMapRouter(t, server, nil)
	require.Equal(t, "old", two.model())
	require.Equal(t, sitemap.SourceShared, two.store.State().Source)
	// The same generation with other content wins against a restored one, at any router, and
	// also when the server is away.
	server.Stop()
	two.push(7, "new")
	server.Restart()
	one.awaitModel("new")
	require.Equal(t, sitemap.SourceShared, one.store.State().Source)
}

func TestEachRouterKeepsACopyOnDisk(t *testing.T) {
	server := valkeytest.Start(t)
	one := newMapRouter(t, server, nil)
	path := filepath.Join(t.TempDir(), "map.json")
	newMapRouter(t, server, func(s *sitemap.Store) { s.Persist(path) })
	one.push(7, "m")
	restored := sitemap.NewStore("here", nil)
	polltest.Until(t, "the copy is on disk", func() bool {
		require.NoError(t, restored.Restore(path))
		return restored.Current() != nil
	})
	require.Equal(t, one.store.Current().ETag(), restored.Current().ETag())

	unwritable := newMapRouter(t, server, func(s *sitemap.Store) { s.Persist(t.TempDir()) })
	require.Equal(t, "m", unwritable.model())
	require.Equal(t, 1, unwritable.log.count("is not on disk"))
}

func TestAPushWhileTheServerIsSilentIsDecidedHere(t *testing.T) {
	server := valkeytest.Start(t)
	one, two := newMapRouter(t, server, nil), newMapRouter(t, server, nil)
	resume := server.Pause()
	begin := time.Now()
	one.push(7, "m")
	t.Logf("decided after %v", time.Since(begin))
	require.Less(t, time.Since(begin), 5*time.Second)
	_, err := one.store.PushHints(t.Context(), hintsText("m", "warm", 0))
	require.NoError(t, err)
	resume()
	two.awaitModel("m")
	polltest.Until(t, "the hints are in force", func() bool { return len(two.store.Current().Hints()) == 1 })
}

// A map of the largest size is shared; of a smaller one unless the server is a real one, since
// the race detector makes parsing slow.
func TestALargeMapIsShared(t *testing.T) {
	size := 1 << 20
	if os.Getenv("HOLDGATE_VALKEY") != "" {
		size = sitemap.MaxBytes
	}
	server := valkeytest.Start(t)
	one, two := newMapRouter(t, server, nil), newMapRouter(t, server, nil)
	var b strings.Builder
	b.WriteString(`{"generation": 7, "sites": [`)
	for i := 0; b.Len() < size-3000; i++ {
		if i > 0 {
			b.WriteByte(',')
		}
		// Few entries that are long, for to parse many takes longer than all the rest.
		fmt.Fprintf(&b, `{"id":"s-%d","url":"https://s.example/%01990d"}`, i, i)
	}
	b.WriteString("]}")
	ctx, end := context.WithCancel(t.Context())
	slowest := make(chan time.Duration)
	go func() {
		var longest time.Duration
		for ctx.Err() == nil {
			begin := time.Now()
			_ = two.client.DoSlowly(t.Context(), "test", func(b valkey.Builder) valkey.Completed { return b.Ping().Build() }).Error()
			longest = max(longest, time.Since(begin))
		}
		slowest <- longest
	}()
	begin := time.Now()
	_, err := one.store.PushIf(t.Context(), "", []byte(b.String()), false)
	require.NoError(t, err)
	pushed := time.Since(begin)
	polltest.Until(t, "the map is in force", func() bool { return two.store.Current() != nil })
	t.Logf("pushed in %v, in force at the other router %v later", pushed, time.Since(begin)-pushed)
	end()
	t.Logf("the slowest call meanwhile took %v", <-slowest)
	require.Equal(t, one.store.Current().ETag(), two.store.Current().ETag())
}
