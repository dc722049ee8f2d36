// SPDX-License-Identifier: Apache-2.0

package sitemap

import (
	"encoding/json/v2"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

const emptyFleet = fleet + `, "generation": 5}`

// hintsOf is the body of a push of hints for the chat model m, as of now.
func hintsOf(pairs ...string) []byte {
	var list []string
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, fmt.Sprintf(`{"model": "m", "kind": "chat", "site": %q, "state": %q, "observed_at": %q}`,
			pairs[i], pairs[i+1], time.Now().UTC().Format(time.RFC3339Nano)))
	}
	return []byte(`{"hints": [` + strings.Join(list, ",") + `]}`)
}

func TestPushHintsReplacesHintsAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := NewStore(here, nil)
		push(t, s, []byte(emptyFleet))
		before := s.State()
		o := order(t, before.Map)
		q := Query{Target: chatOfM, Key: "k", CanHoldHere: true}
		<-time.After(time.Minute) // on the bubble's clock

		sum, err := s.PushHints(t.Context(), hintsOf(o[1], "warm", o[2], "cold", "here", "warm"))
		require.NoError(t, err)
		require.Equal(t, HintsSummary{Hints: 3, Warm: 2, Unplaced: 1}, sum)
		after := s.State()
		require.Same(t, before.Map.core, after.Map.core)
		require.Equal(t, before.Source, after.Source)
		require.Equal(t, before.ReceivedAt, after.ReceivedAt)
		require.Equal(t, time.Now(), after.Map.hints.received)
		require.NotEqual(t, before.Map.ETag(), after.Map.ETag(), "the JSON is another")
		require.Equal(t, o[1], s.Current().Pick(q, time.Now()).Site.ID)
		require.Equal(t, ReasonFirstHome, before.Map.Pick(q, time.Now()).Reason, "a snapshot never changes")

		_, err = s.PushHints(t.Context(), hintsOf(o[0], "cold", o[1], "cold"))
		require.NoError(t, err)
		require.Equal(t, ReasonHomesCold, s.Current().Pick(q, time.Now()).Reason)
		<-time.After(DefaultHintsFreshFor)
		require.Equal(t, ReasonFirstHome, s.Current().Pick(q, time.Now()).Reason)

		_, err = s.PushHints(t.Context(), []byte(`{"hints": []}`))
		require.NoError(t, err)
		require.Empty(t, s.Current().Hints())
		require.Equal(t, before.Map.ETag(), s.Current().ETag())
		require.Equal(t, string(before.Map.JSON()), string(s.Current().JSON()))
	})
}

func TestHintsSummaryAsJSON(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(HintsSummary{Hints: 3, Warm: 2, Unplaced: 1})
	require.NoError(t, err)
	require.JSONEq(t, `{"hints": 3, "warm": 2, "unplaced": 1}`, string(text))
}

func TestHintsFreshForIsASetting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := NewStore(here, nil, HintsFreshFor(time.Second))
		push(t, s, []byte(emptyFleet))
		second := order(t, s.Current())[1]
		_, err := s.PushHints(t.Context(), hintsOf(second, "warm"))
		require.NoError(t, err)
		q := Query{Target: chatOfM, Key: "k"}
		require.Equal(t, ReasonWarmHome, s.Current().Pick(q, time.Now().Add(time.Second-1)).Reason)
		require.Equal(t, ReasonFirstHome, s.Current().Pick(q, time.Now().Add(time.Second)).Reason)
	})
}

func TestBadHintsNameEveryProblem(t *testing.T) {
	t.Parallel()
	const good = `{"model": "m", "kind": "chat", "site": "a", "state": "warm", "observed_at": "2026-11-29T12:00:00Z"}`
	for body, want := range map[string][]string{
		``:                    {"the map is empty"},
		`[]`:                  {"the map must be an object, not an array"},
		`{}`:                  {"hints: is missing"},
		`{"hints": null}`:     {"hints: must be an array, not null"},
		`{"hints": []} 7`:     {"the map is followed by more data"},
		`{"hints": [` + good:  {"hints[1]: is not valid JSON"},
		`{"hints":[], "x":1}`: {"x: is not a known field"},
		`{"generation": 1, "sites": [], "placements": [], "hints": []}`:   {"generation: is not", "sites: is not", "placements: is not"},
		`{"hints": [` + good + `,` + good + `]}`:                          {"hints[1]: repeats hints[0]"},
		`{"hints": [` + strings.Replace(good, `"a"`, `"zz"`, 1) + `]}`:    {`hints[0].site: is not this site and not in sites: "zz"`},
		`{"hints": [` + good + `,{"model": "", "state": "hot"}, 5]}`:      {"hints[1].model: must not be empty", `hints[1].state: must be warm or cold, not "hot"`, "hints[1].kind: is missing", "hints[1].site: is missing", "hints[1].observed_at: is missing", "hints[2]: must be an object"},
		`{"hints": [` + strings.Replace(good, `"2026`, `"26`, 1) + `]}`:   {"hints[0].observed_at: must be an RFC 3339 time"},
		`{"hints": [` + strings.Replace(good, `{`, `{"x": 1, `, 1) + `]}`: {"hints[0].x: is not a known field"},
	} {
		s := NewStore(here, nil)
		push(t, s, []byte(emptyFleet))
		_, err := s.PushHints(t.Context(), hintsOf("a", "warm"))
		require.NoError(t, err)
		before := s.State()
		_, err = s.PushHints(t.Context(), []byte(body))
		var problems Problems
		require.ErrorAs(t, err, &problems, body)
		require.Len(t, problems, len(want), "%s: %v", body, problems)
		for i := range want {
			require.Contains(t, problems.Lines()[i], want[i])
		}
		require.Equal(t, before, s.State())
	}
	_, err := NewStore(here, nil).PushHints(t.Context(), make([]byte, MaxBytes+1))
	require.ErrorIs(t, err, ErrTooLarge)
}

func TestHintsNeedAMap(t *testing.T) {
	t.Parallel()
	s := NewStore(here, nil)
	_, err := s.PushHints(t.Context(), hintsOf("a", "warm"))
	require.ErrorIs(t, err, ErrNoMap)
	_, err = s.PushHints(t.Context(), []byte(`{"hints": 1}`))
	require.ErrorContains(t, err, "must be an array")
	require.Nil(t, s.Current())
}

// A writer that pushes its document again must not be refused because hints
// came in between, whatever hints the document has.
func TestGenerationsDoNotCountHints(t *testing.T) {
	t.Parallel()
	changes := 0
	s := NewStore(here, func(_, _ *Map) { changes++ })
	push(t, s, []byte(emptyFleet))
	_, err := s.PushHints(t.Context(), hintsOf("a", "warm"))
	require.NoError(t, err)

	sum, err := s.Push([]byte(emptyFleet), false)
	require.NoError(t, err)
	require.True(t, sum.Unchanged)
	require.Empty(t, s.Current().Hints(), "a pushed map brings its own hints, or none")

	withHints := strings.TrimSuffix(emptyFleet, "}") + `, "hints": [{"model": "m", "kind": "chat", "site": "a", "state": "warm", "observed_at": "2026-11-29T12:00:00Z"}]}`
	sum, err = s.Push([]byte(withHints), false)
	require.NoError(t, err)
	require.True(t, sum.Unchanged)
	require.Len(t, s.Current().Hints(), 1)
	require.Equal(t, 1, changes, "hints are no other map")

	_, err = s.Push([]byte(strings.Replace(emptyFleet, `"alone"`, `"other"`, 1)), false)
	var conflict *ConflictError
	require.ErrorAs(t, err, &conflict)
}

func TestRestoredHintsAreStaleUntilNewOnesCome(t *testing.T) {
	t.Parallel()
	path := mapFile(t)
	before := NewStore(here, nil)
	before.Persist(path)
	push(t, before, []byte(strings.TrimSuffix(emptyFleet, "}")+","+string(hintsOf("a", "warm", "b", "warm", "c", "warm", "d", "warm")[1:])))
	q := Query{Target: chatOfM, Key: "k"}
	require.Equal(t, ReasonWarmHome, before.Current().Pick(q, time.Now()).Reason)

	after := NewStore(here, nil)
	require.NoError(t, after.Restore(path))
	require.Len(t, after.Current().Hints(), 4)
	require.Equal(t, ReasonFirstHome, after.Current().Pick(q, time.Now()).Reason)
	_, err := after.PushHints(t.Context(), hintsOf("a", "warm", "b", "warm", "c", "warm", "d", "warm"))
	require.NoError(t, err)
	require.Equal(t, ReasonWarmHome, after.Current().Pick(q, time.Now()).Reason)
	require.Equal(t, SourceRestored, after.State().Source)
}

func TestHintsAreNotWrittenToDisk(t *testing.T) {
	t.Parallel()
	path := mapFile(t)
	s := NewStore(here, nil)
	s.Persist(path)
	push(t, s, []byte(emptyFleet))
	written, err := os.ReadFile(path)
	require.NoError(t, err)
	_, err = s.PushHints(t.Context(), hintsOf("a", "warm"))
	require.NoError(t, err)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(written), string(text))
}

func TestIfMatch(t *testing.T) {
	t.Parallel()
	s := NewStore(here, nil)
	_, err := s.PushIf(t.Context(), `*`, []byte(emptyFleet), false)
	var mismatch *MismatchError
	require.ErrorAs(t, err, &mismatch)
	require.Equal(t, MismatchError{IfMatch: "*"}, *mismatch)
	require.ErrorContains(t, err, "no map is in force")
	require.Nil(t, s.Current())

	push(t, s, []byte(emptyFleet))
	tag := s.Current().ETag()
	next := func(n int) []byte {
		return []byte(strings.Replace(emptyFleet, `"generation": 5`, fmt.Sprintf(`"generation": %d`, n), 1))
	}
	for _, bad := range []string{`"x"`, tag[1:], tag[:40], "W/" + tag, strings.Trim(tag, `"`), `""`, `"x", "y"`, `,`} {
		_, err = s.PushIf(t.Context(), bad, next(6), true)
		require.ErrorAs(t, err, &mismatch, bad)
		require.Equal(t, tag, mismatch.InForce)
		require.EqualValues(t, 5, s.Current().Generation())
	}
	_, err = s.PushIf(t.Context(), tag, []byte(`{"x": 1}`), false)
	var problems Problems
	require.ErrorAs(t, err, &problems)

	n := 5
	for _, good := range []func() string{
		func() string { return s.Current().ETag() },
		func() string { return `*` },
		func() string { return `"x",` + s.Current().ETag() + `, "y"` },
		func() string {
			// Hints that came since do not count.
			tag := s.Current().ETag()
			_, err := s.PushHints(t.Context(), hintsOf("a", "warm"))
			require.NoError(t, err)
			return tag
		},
	} {
		n++
		_, err = s.PushIf(t.Context(), good(), next(n), false)
		require.NoError(t, err)
		require.EqualValues(t, n, s.Current().Generation())
	}
	_, err = s.PushIf(t.Context(), tag, next(n+1), false)
	require.ErrorAs(t, err, &mismatch)
}

// Of many writers that change the map they read, each change is made to the map
// in force: the check and the swap are one step.
func TestIfMatchLosesNoUpdate(t *testing.T) {
	t.Parallel()
	s := NewStore(here, nil)
	push(t, s, numbered(0, "a"))
	var wg sync.WaitGroup
	var mu sync.Mutex
	accepted := 0
	for range 4 {
		wg.Go(func() {
			for range 50 {
				m := s.Current()
				if _, err := s.PushIf(t.Context(), m.ETag(), numbered(int(m.Generation())+1, "a"), true); err == nil {
					mu.Lock()
					accepted++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, accepted, s.Current().Generation())
}

// Readers see hints that belong to the map they read, whatever is pushed.
func TestHintsAgainstMaps(t *testing.T) {
	t.Parallel()
	s := NewStore(here, nil)
	two := func(first, second string) []byte {
		return fmt.Appendf(nil, `{"sites": [{"id": %q, "url": "https://1.example"}, {"id": %q, "url": "https://2.example"}, {"id": "warm", "url": "https://w.example"}],
 "placements": [{"model": "m", "kind": "chat", "site": %[1]q}, {"model": "m", "kind": "chat", "site": "warm"}]}`, first, second)
	}
	push(t, s, two("a", "b"))
	done := make(chan struct{})
	var readers, writers sync.WaitGroup
	readers.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			m := s.Current()
			if c := m.Pick(Query{Target: chatOfM}, time.Now()); len(m.Hints()) > 0 && c.Site.ID != "warm" {
				t.Errorf("hints of another map: %v", c.Site.ID)
				return
			}
		}
	})
	writers.Go(func() {
		for i := range 100 {
			if _, err := s.Push(two(fmt.Sprintf("a%d", i), fmt.Sprintf("z%d", i)), false); err != nil {
				t.Error(err)
			}
		}
	})
	writers.Go(func() {
		for range 100 {
			if _, err := s.PushHints(t.Context(), hintsOf("warm", "warm")); err != nil {
				t.Error(err)
			}
		}
	})
	writers.Wait()
	close(done)
	readers.Wait()
}

// FuzzPushHints: no input panics, and what is refused changes nothing.
func FuzzPushHints(f *testing.F) {
	f.Add([]byte(`{"hints": [{"model": "m", "kind": "chat", "site": "a", "state": "warm", "observed_at": "2026-11-29T12:00:00Z"}]}`))
	f.Add([]byte(`{"hints": [{"model": "m", "kind": "rerank", "site": "here", "state": "cold", "observed_at": "0001-01-01T00:00:00Z"}]}`))
	f.Add([]byte(`{"hints": [{}, 1, null]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := NewStore(here, nil)
		push(t, s, []byte(emptyFleet))
		before := s.Current()
		sum, err := s.PushHints(t.Context(), data)
		if err != nil {
			require.Same(t, before, s.Current())
			return
		}
		require.Len(t, s.Current().Hints(), sum.Hints)
		again, err := Parse(s.Current().JSON(), here)
		require.NoError(t, err)
		require.Equal(t, s.Current().ETag(), again.ETag())
		c := s.Current().Pick(Query{Target: chatOfM}, time.Now())
		require.True(t, c.Redirect)
	})
}

func TestSiblingsHaveTheHintsAboutThem(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := NewStore(here, nil)
		push(t, s, []byte(emptyFleet))
		o := order(t, s.Current())
		_, err := s.PushHints(t.Context(), hintsOf(o[0], "warm", o[1], "cold", "here", "warm"))
		require.NoError(t, err)
		states := func() map[string]string {
			all := map[string]string{}
			for _, sibling := range s.Current().Siblings(here, time.Now()) {
				require.NotEmpty(t, sibling.URL)
				all[sibling.ID] = ""
				for _, h := range sibling.Hints {
					require.Equal(t, "m", h.Model)
					all[sibling.ID] += h.State
				}
			}
			return all
		}
		got := states()
		require.Equal(t, []string{"warm", "cold", ""}, []string{got[o[0]], got[o[1]], got[o[2]]})
		require.NotContains(t, got, here)
		<-time.After(DefaultHintsFreshFor)
		require.Equal(t, "stale", states()[o[0]])
	})
}
