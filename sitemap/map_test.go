// SPDX-License-Identifier: Apache-2.0

package sitemap

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/holdgate/holdgate/internal/target"
)

const threeSites = `{"generation": 3,
 "sites": [{"id": "us", "url": "https://us.example", "scopes": ["us", "all"]}, {"id": "fr", "url": "https://fr.example"}],
 "placements": [
  {"model": "b", "kind": "chat", "site": "fr"},
  {"model": "b", "kind": "chat", "site": "here", "scale_from_zero": true, "hold_budget": "240s"},
  {"model": "b", "kind": "rerank", "site": "here", "scale_from_zero": true},
  {"model": "c", "kind": "embedding", "site": "here", "hold_budget": "1h"},
  {"model": "d", "kind": "chat", "site": "us", "scale_from_zero": true},
  {"model": "a", "kind": "chat", "site": "here", "scale_from_zero": true}],
 "hints": [
  {"model": "b", "kind": "chat", "site": "us", "state": "cold", "observed_at": "2026-11-29T21:00:00+01:00"},
  {"model": "b", "kind": "chat", "site": "fr", "state": "warm", "observed_at": "2026-11-29T20:00:00.5Z"}]}`

func parse(t testing.TB, text string) *Map {
	t.Helper()
	m, err := Parse([]byte(text), here)
	require.NoError(t, err)
	return m
}

func TestHereFindsOnlyThisSitesPlacementOfTheKind(t *testing.T) {
	t.Parallel()
	m := parse(t, threeSites)
	for target, want := range map[target.Target]Placement{
		{Model: "a", Kind: target.Chat}:      {Target: target.Target{Model: "a", Kind: target.Chat}, Site: here, ScaleFromZero: true},
		{Model: "b", Kind: target.Chat}:      {Target: target.Target{Model: "b", Kind: target.Chat}, Site: here, ScaleFromZero: true, HoldBudget: 4 * time.Minute},
		{Model: "b", Kind: target.Rerank}:    {Target: target.Target{Model: "b", Kind: target.Rerank}, Site: here, ScaleFromZero: true},
		{Model: "c", Kind: target.Embedding}: {Target: target.Target{Model: "c", Kind: target.Embedding}, Site: here, HoldBudget: time.Hour},
	} {
		got, ok := m.Here(target)
		require.True(t, ok, target)
		require.Equal(t, want, got)
	}
	for _, target := range []target.Target{{Model: "d", Kind: target.Chat}, {Model: "b", Kind: target.Embedding}, {Model: "A", Kind: target.Chat}, {Model: "", Kind: target.Chat}, {Model: "a", Kind: 77}} {
		got, ok := m.Here(target)
		require.False(t, ok, target)
		require.Zero(t, got)
	}
}

func TestHoldableNamesAreSortedAndGivenOnce(t *testing.T) {
	t.Parallel()
	m := parse(t, threeSites)
	require.Equal(t, []string{"a", "b"}, m.Holdable())
	require.Equal(t, []string{"a", "b", "c", "d"}, m.Models())
}

func TestTheSameMapIsSeenDifferentlyFromAnotherSite(t *testing.T) {
	t.Parallel()
	text := strings.ReplaceAll(threeSites, `"sites": [`, `"sites": [{"id": "here", "url": "https://here.example"}, `)
	m, err := Parse([]byte(text), "us")
	require.NoError(t, err)
	require.Equal(t, []string{"d"}, m.Holdable())
	require.Equal(t, []string{"a", "b", "c", "d"}, m.Models())
}

func TestListsCannotChangeTheMap(t *testing.T) {
	t.Parallel()
	m := parse(t, threeSites)
	m.Holdable()[0] = "x"
	m.Models()[0] = "x"
	m.Hints()[0].Model = "x"
	require.Equal(t, parse(t, threeSites), m)
}

func TestHintsAreKeptInOrderAndInUTC(t *testing.T) {
	t.Parallel()
	eight := time.Date(2026, 11, 29, 20, 0, 0, 0, time.UTC)
	require.Equal(t, []Hint{
		{Model: "b", Kind: target.Chat, Site: "fr", Warm: true, ObservedAt: eight.Add(time.Second / 2)},
		{Model: "b", Kind: target.Chat, Site: "us", ObservedAt: eight},
	}, parse(t, threeSites).Hints())
}

func TestCanonicalFormIsFixed(t *testing.T) {
	t.Parallel()
	m := parse(t, threeSites)
	require.Equal(t, `{"generation":3,"sites":[{"id":"fr","url":"https://fr.example"},`+
		`{"id":"us","url":"https://us.example","scopes":["all","us"]}],"placements":[`+
		`{"model":"a","kind":"chat","site":"here","scale_from_zero":true},`+
		`{"model":"b","kind":"chat","site":"fr"},`+
		`{"model":"b","kind":"chat","site":"here","scale_from_zero":true,"hold_budget":"4m"},`+
		`{"model":"b","kind":"rerank","site":"here","scale_from_zero":true},`+
		`{"model":"c","kind":"embedding","site":"here","hold_budget":"1h"},`+
		`{"model":"d","kind":"chat","site":"us","scale_from_zero":true}],"hints":[`+
		`{"model":"b","kind":"chat","site":"fr","state":"warm","observed_at":"2026-11-29T20:00:00.5Z"},`+
		`{"model":"b","kind":"chat","site":"us","state":"cold","observed_at":"2026-11-29T20:00:00Z"}]}`, string(m.JSON()))
	require.Regexp(t, `^"[0-9a-f]{64}"$`, m.ETag())
}

func TestAMapNumberedZeroIsNotOneWithoutNumber(t *testing.T) {
	t.Parallel()
	require.Equal(t, `{}`, string(parse(t, `{}`).JSON()))
	require.Equal(t, `{"generation":0}`, string(parse(t, `{"generation": 0}`).JSON()))
}

func TestETagChangesWithTheMeaning(t *testing.T) {
	t.Parallel()
	tag := parse(t, threeSites).ETag()
	for _, edit := range [][2]string{
		{`3,`, `4,`},
		{`https://fr.example`, `https://fr.example/`},
		{`"us", "all"`, `"us"`},
		{`"240s"`, `"241s"`},
		{`"cold"`, `"warm"`},
		{`"site": "fr"}`, `"site": "fr", "scale_from_zero": true}`},
	} {
		require.Contains(t, threeSites, edit[0])
		require.NotEqual(t, tag, parse(t, strings.Replace(threeSites, edit[0], edit[1], 1)).ETag(), edit)
	}
	require.Equal(t, tag, parse(t, strings.ReplaceAll(threeSites, `"240s"`, `"0h4m0.0s"`)).ETag())
}

// Whatever order a writer puts the entries in, the map is the same, and the
// lookups agree with a plain search.
func TestOrderOfEntriesDoesNotMatter(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		entries := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) Placement {
			return Placement{
				Model:         rapid.SampledFrom([]string{"a", "b", "c", "ä", "A"}).Draw(t, "model"),
				Kind:          rapid.SampledFrom(target.Kinds[:]).Draw(t, "kind"),
				Site:          rapid.SampledFrom([]string{"fr", here, "us"}).Draw(t, "site"),
				ScaleFromZero: rapid.Bool().Draw(t, "scale_from_zero"),
			}
		}), 0, 30, func(p Placement) entryKey { return entryKey{p.Target, p.Site} }).Draw(t, "placements")
		shuffled := rapid.Permutation(entries).Draw(t, "order")

		m, err := Parse([]byte(mapOf(entries)), here)
		require.NoError(t, err)
		again, err := Parse([]byte(mapOf(shuffled)), here)
		require.NoError(t, err)
		require.Equal(t, m, again)

		for _, model := range []string{"a", "b", "c", "ä", "A", "none"} {
			holds := false
			for _, k := range target.Kinds {
				target := target.Target{Model: model, Kind: k}
				i := slices.IndexFunc(entries, func(p Placement) bool { return p.Target == target && p.Site == here })
				p, ok := m.Here(target)
				require.Equal(t, i >= 0, ok)
				if ok {
					require.Equal(t, entries[i], p)
				}
				holds = holds || p.ScaleFromZero
			}
			require.Equal(t, holds, slices.Contains(m.Holdable(), model))
		}
		require.True(t, slices.IsSorted(m.Models()))
	})
}

func mapOf(placements []Placement) string {
	var b strings.Builder
	b.WriteString(`{"sites": [{"id": "fr", "url": "https://fr.example"}, {"id": "us", "url": "https://us.example"}], "placements": [`)
	for i, p := range placements {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, `{"model": %q, "kind": %q, "site": %q, "scale_from_zero": %t}`, p.Model, p.Kind, p.Site, p.ScaleFromZero)
	}
	b.WriteString("]}")
	return b.String()
}
