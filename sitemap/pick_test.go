// SPDX-License-Identifier: Apache-2.0

package sitemap

import (
	"encoding/json/v2"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/holdgate/holdgate/internal/target"
)

// noon is when the hints of these tests come.
var noon = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// fleet is a map of sites a, b, c and d, which have the model m, and of this
// one. The key "k" has the homes that homes() gives.
const fleet = `{"sites": [
  {"id": "here", "url": "https://here.example", "scopes": ["eu", "us"]},
  {"id": "a", "url": "https://a.example", "scopes": ["eu"]},
  {"id": "b", "url": "https://b.example", "scopes": ["eu", "us"]},
  {"id": "c", "url": "https://c.example", "scopes": ["us"]},
  {"id": "d", "url": "https://d.example"}],
 "placements": [
  {"model": "m", "kind": "chat", "site": "a"}, {"model": "m", "kind": "chat", "site": "b"},
  {"model": "m", "kind": "chat", "site": "c"}, {"model": "m", "kind": "chat", "site": "d"},
  {"model": "m", "kind": "chat", "site": "here", "scale_from_zero": true},
  {"model": "alone", "kind": "chat", "site": "here", "scale_from_zero": true},
  {"model": "pair", "kind": "chat", "site": "a"},
  {"model": "m", "kind": "rerank", "site": "c"}]`

var chatOfM = target.Target{Model: "m", Kind: target.Chat}

// fleetWith puts hints for the chat model m into the fleet's map, as site and
// state, received at noon.
func fleetWith(t testing.TB, hints map[string]string, observed time.Time) *Map {
	t.Helper()
	var list []string
	for site, state := range hints {
		list = append(list, fmt.Sprintf(`{"model": "m", "kind": "chat", "site": %q, "state": %q, "observed_at": %q}`,
			site, state, observed.Format(time.RFC3339Nano)))
	}
	m := parse(t, fleet+`, "hints": [`+strings.Join(list, ",")+`]}`)
	m.hints.receive(noon, noon, DefaultHintsFreshFor)
	return m
}

// order returns all in-scope siblings for the key k, best first.
func order(t testing.TB, m *Map, scopes ...string) []string {
	t.Helper()
	_, list := m.Explain(Query{Target: chatOfM, Key: "k", Scopes: scopes}, noon)
	var names []string
	for _, c := range list {
		if c.InScope {
			names = append(names, c.Site)
		}
	}
	return names
}

func TestPickFollowsTheRules(t *testing.T) {
	t.Parallel()
	o := order(t, fleetWith(t, nil, noon))
	require.Len(t, o, 4)
	first, second, third, fourth := o[0], o[1], o[2], o[3]
	for name, c := range map[string]struct {
		hints    map[string]string
		noHold   bool
		hops     int
		want     string
		wantWhy  Reason
		observed time.Duration
		later    time.Duration
	}{
		"nothing known":                            {want: first, wantWhy: ReasonFirstHome},
		"nothing known, sent on once":              {hops: 1, want: first, wantWhy: ReasonFirstHome},
		"sent on twice":                            {hops: 2, hints: map[string]string{first: "warm"}, wantWhy: ReasonTooManyHops},
		"sent on more often":                       {hops: 9, wantWhy: ReasonTooManyHops},
		"first home warm":                          {hints: map[string]string{first: "warm", second: "cold", third: "warm"}, want: first, wantWhy: ReasonWarmHome},
		"second home warm":                         {hints: map[string]string{first: "cold", second: "warm", third: "warm"}, want: second, wantWhy: ReasonWarmHome},
		"second home warm, first unknown":          {hints: map[string]string{second: "warm"}, want: second, wantWhy: ReasonWarmHome},
		"both homes warm":                          {hints: map[string]string{first: "warm", second: "warm"}, want: first, wantWhy: ReasonWarmHome},
		"both homes cold":                          {hints: map[string]string{first: "cold", second: "cold"}, wantWhy: ReasonHomesCold},
		"both homes cold, another warm":            {hints: map[string]string{first: "cold", second: "cold", third: "warm"}, wantWhy: ReasonHomesCold},
		"both homes cold, no hold":                 {noHold: true, hints: map[string]string{first: "cold", second: "cold"}, want: first, wantWhy: ReasonFirstHome},
		"both homes cold, no hold, another warm":   {noHold: true, hints: map[string]string{first: "cold", second: "cold", fourth: "warm"}, want: fourth, wantWhy: ReasonWarmSibling},
		"no hold, two others warm":                 {noHold: true, hints: map[string]string{third: "warm", fourth: "warm"}, want: third, wantWhy: ReasonWarmSibling},
		"one home cold, one unknown":               {hints: map[string]string{first: "cold"}, want: first, wantWhy: ReasonFirstHome},
		"one home cold, one unknown, another warm": {hints: map[string]string{first: "cold", fourth: "warm"}, want: fourth, wantWhy: ReasonWarmSibling},
		"here warm":                                {hints: map[string]string{"here": "warm"}, want: first, wantWhy: ReasonFirstHome},
		"here cold":                                {hints: map[string]string{"here": "cold", first: "cold", second: "cold"}, wantWhy: ReasonHomesCold},

		"fresh until the end":         {hints: map[string]string{second: "warm"}, later: 30*time.Second - 1, want: second, wantWhy: ReasonWarmHome},
		"stale at the end":            {hints: map[string]string{second: "warm"}, later: 30 * time.Second, want: first, wantWhy: ReasonFirstHome},
		"stale cold homes":            {hints: map[string]string{first: "cold", second: "cold"}, later: 30 * time.Second, want: first, wantWhy: ReasonFirstHome},
		"old when it came, fresh":     {hints: map[string]string{second: "warm"}, observed: -10 * time.Second, later: 20*time.Second - 1, want: second, wantWhy: ReasonWarmHome},
		"old when it came, stale":     {hints: map[string]string{second: "warm"}, observed: -10 * time.Second, later: 20 * time.Second, want: first, wantWhy: ReasonFirstHome},
		"stale when it came":          {hints: map[string]string{second: "warm"}, observed: -30 * time.Second, want: first, wantWhy: ReasonFirstHome},
		"from the future, fresh":      {hints: map[string]string{second: "warm"}, observed: time.Hour, later: 30*time.Second - 1, want: second, wantWhy: ReasonWarmHome},
		"from the future, stale":      {hints: map[string]string{second: "warm"}, observed: time.Hour, later: 30 * time.Second, want: first, wantWhy: ReasonFirstHome},
		"from another century":        {hints: map[string]string{second: "warm"}, observed: 250 * 365 * 24 * time.Hour, later: 30 * time.Second, want: first, wantWhy: ReasonFirstHome},
		"asked before the hints came": {hints: map[string]string{second: "warm"}, later: -time.Second, want: second, wantWhy: ReasonWarmHome},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := fleetWith(t, c.hints, noon.Add(c.observed))
			q := Query{Target: chatOfM, Key: "k", Hops: c.hops, CanHoldHere: !c.noHold}
			got := m.Pick(q, noon.Add(c.later))
			require.Equal(t, c.wantWhy, got.Reason, got.Reason)
			require.Equal(t, c.want != "", got.Redirect)
			if c.want == "" {
				require.Nil(t, got.Site)
				return
			}
			require.Equal(t, c.want, got.Site.ID)
			require.Equal(t, "https://"+c.want+".example", got.Site.URL)
		})
	}
}

func TestPickWithoutASibling(t *testing.T) {
	t.Parallel()
	m := fleetWith(t, nil, noon)
	for name, c := range map[string]struct {
		q    Query
		want Reason
	}{
		"placed here alone":   {Query{Model: "alone", Kind: target.Chat}, ReasonNoSibling},
		"not placed":          {Query{Model: "none", Kind: target.Chat}, ReasonNoSibling},
		"another kind":        {Query{Model: "m", Kind: target.Embedding}, ReasonNoSibling},
		"scope of no site":    {Query{Target: chatOfM, Scopes: []string{"asia"}}, ReasonOutOfScope},
		"scope of other site": {Query{Model: "pair", Kind: target.Chat, Scopes: []string{"us"}}, ReasonOutOfScope},
	} {
		got := m.Pick(c.q, noon)
		require.Equal(t, Choice{Reason: c.want}, got, name)
	}
}

func TestScopesOfTheKeyMeetThoseOfTheSite(t *testing.T) {
	t.Parallel()
	m := fleetWith(t, nil, noon)
	for scopes, want := range map[string][]string{
		"":         {"a", "b", "c", "d"},
		"eu":       {"a", "b"},
		"us":       {"b", "c"},
		"us,eu":    {"a", "b", "c"},
		"asia,us":  {"b", "c"},
		"asia":     nil,
		"EU":       nil,
		"eu ,u s,": nil,
	} {
		var list []string
		if scopes != "" {
			list = strings.Split(scopes, ",")
		}
		got := order(t, m, list...)
		slices.Sort(got)
		require.Equal(t, want, got, scopes)
	}
}

// With one sibling in scope the home set is that one.
func TestOneColdHomeIsEnoughToHold(t *testing.T) {
	t.Parallel()
	m := parse(t, fleet+`, "hints": [{"model": "pair", "kind": "chat", "site": "a", "state": "cold", "observed_at": "2026-11-29T12:00:00Z"}]}`)
	m.hints.receive(noon, noon, DefaultHintsFreshFor)
	q := Query{Model: "pair", Kind: target.Chat, Key: "k", CanHoldHere: true}
	require.Equal(t, ReasonHomesCold, m.Pick(q, noon).Reason)
	q.CanHoldHere = false
	require.Equal(t, ReasonFirstHome, m.Pick(q, noon).Reason)
}

func TestManyScopes(t *testing.T) {
	t.Parallel()
	const n = 193
	var sites, placements []string
	for i := range n {
		sites = append(sites, fmt.Sprintf(`{"id": "s%d", "url": "https://s%d.example", "scopes": ["x%d", "all"]}`, i, i, i))
		placements = append(placements, fmt.Sprintf(`{"model": "m", "kind": "chat", "site": "s%d"}`, i))
	}
	m := parse(t, `{"sites": [`+strings.Join(sites, ",")+`], "placements": [`+strings.Join(placements, ",")+`]}`)
	for i := range n {
		require.Equal(t, []string{fmt.Sprintf("s%d", i)}, order(t, m, fmt.Sprintf("x%d", i)))
	}
	require.Len(t, order(t, m, "all", "x1"), n)
}

func TestAParsedMapHasStaleHints(t *testing.T) {
	t.Parallel()
	now := time.Now()
	m := parse(t, fleet+fmt.Sprintf(`, "hints": [{"model": "m", "kind": "chat", "site": "a", "state": "warm", "observed_at": %q}]}`,
		now.UTC().Format(time.RFC3339Nano)))
	require.Equal(t, ReasonFirstHome, m.Pick(Query{Target: chatOfM}, now).Reason)
	require.Equal(t, ReasonFirstHome, m.Pick(Query{Target: chatOfM}, time.Time{}).Reason)
}

func TestEachReasonHasAText(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for r := range ReasonFirstHome + 1 {
		require.NotEmpty(t, r.Text())
		require.False(t, seen[r.Text()])
		seen[r.Text()] = true
	}
	require.Empty(t, Reason(99).Text())
}

func TestExplainNamesEverySibling(t *testing.T) {
	t.Parallel()
	o := order(t, fleetWith(t, nil, noon), "eu", "us")
	m := fleetWith(t, map[string]string{o[0]: "cold", o[1]: "warm", o[2]: "warm", "d": "warm"}, noon)
	choice, list := m.Explain(Query{Target: chatOfM, Key: "k", Scopes: []string{"eu", "us"}}, noon)
	require.Equal(t, o[1], choice.Site.ID)
	url := func(site string) string { return "https://" + site + ".example" }
	require.Equal(t, []Candidate{
		{Site: o[0], URL: url(o[0]), InScope: true, Home: 1, State: "cold", Why: "not known to be warm, as another site is"},
		{Site: o[1], URL: url(o[1]), InScope: true, Home: 2, State: "warm", Chosen: true, Why: "the model is warm at a home site of the key"},
		{Site: o[2], URL: url(o[2]), InScope: true, State: "warm", Why: "warm too, but another site comes first for this key"},
		{Site: "d", URL: url("d"), Why: "its scopes and the key's have none in common"},
	}, list)

	_, list = m.Explain(Query{Target: chatOfM, Key: "k"}, noon.Add(time.Minute))
	require.Len(t, list, 4)
	for i, c := range list {
		require.Equal(t, "stale", c.State)
		require.Equal(t, i == 0, c.Chosen)
	}
	require.Equal(t, "not known to be warm, and another site comes first for this key", list[1].Why)

	choice, list = m.Explain(Query{Target: chatOfM, Key: "k", Hops: 2}, noon)
	require.False(t, choice.Redirect)
	require.Equal(t, "the request was sent on twice already", list[0].Why)
	_, list = m.Explain(Query{Model: "none", Kind: target.Chat}, noon)
	require.Empty(t, list)
	text, err := json.Marshal(list)
	require.NoError(t, err)
	require.Equal(t, "[]", string(text))
}

// drawMap draws a fleet of up to n sites and, for each, whether it has the
// model and what is known of it.
func drawMap(t *rapid.T, n int) (*Map, map[string]Site) {
	sites := map[string]Site{}
	var listed, placed, hinted []string
	for i := range rapid.IntRange(0, n).Draw(t, "sites") {
		id := fmt.Sprintf("s%d", i)
		site := Site{ID: id, Scopes: rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"x", "y", "z"}), 0, 3, rapid.ID[string]).Draw(t, "scopes")}
		sites[id] = site
		scopes, err := json.Marshal(site.Scopes)
		require.NoError(t, err)
		listed = append(listed, fmt.Sprintf(`{"id": %q, "url": "https://%s.example", "scopes": %s}`, id, id, scopes))
		if rapid.Bool().Draw(t, "placed") {
			placed = append(placed, fmt.Sprintf(`{"model": "m", "kind": "chat", "site": %q}`, id))
		}
		if s := rapid.SampledFrom([]string{"", "warm", "cold"}).Draw(t, "hint"); s != "" {
			observed := noon.Add(time.Duration(rapid.IntRange(-40, 40).Draw(t, "age")) * time.Second)
			hinted = append(hinted, fmt.Sprintf(`{"model": "m", "kind": "chat", "site": %q, "state": %q, "observed_at": %q}`, id, s, observed.Format(time.RFC3339)))
		}
	}
	if rapid.Bool().Draw(t, "here too") {
		placed = append(placed, `{"model": "m", "kind": "chat", "site": "s0"}`)
		placed = slices.Compact(slices.Sorted(slices.Values(placed)))
	}
	if len(sites) == 0 {
		placed = nil
	}
	m, err := Parse([]byte(`{"sites": [`+strings.Join(listed, ",")+`], "placements": [`+strings.Join(placed, ",")+
		`], "hints": [`+strings.Join(hinted, ",")+`]}`), "s0")
	require.NoError(t, err)
	m.hints.receive(noon, noon, DefaultHintsFreshFor)
	return m, sites
}

// Whatever the map and the question: never this site, never out of scope, never
// a third hop, never a site without the model, and the same each time.
func TestPickKeepsItsPromises(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m, sites := drawMap(t, 6)
		q := Query{
			Target:      chatOfM,
			Key:         rapid.String().Draw(t, "key"),
			Scopes:      rapid.SliceOfN(rapid.SampledFrom([]string{"x", "y", "z", "w"}), 0, 3).Draw(t, "key's scopes"),
			Hops:        rapid.IntRange(0, 4).Draw(t, "hops"),
			CanHoldHere: rapid.Bool().Draw(t, "can hold here"),
		}
		now := noon.Add(time.Duration(rapid.IntRange(0, 60).Draw(t, "later")) * time.Second)
		got := m.Pick(q, now)
		require.Equal(t, got, m.Pick(q, now))
		require.Equal(t, got.Redirect, got.Site != nil)
		require.Equal(t, got.Redirect, got.Reason >= ReasonWarmHome)
		if !got.Redirect {
			require.True(t, got.Reason != ReasonHomesCold || q.CanHoldHere)
			return
		}
		require.Less(t, q.Hops, MaxHops)
		require.NotEqual(t, "s0", got.Site.ID)
		require.True(t, m.placedAtSibling(q.Target, got.Site.ID))
		if len(q.Scopes) > 0 {
			require.True(t, slices.ContainsFunc(sites[got.Site.ID].Scopes, func(s string) bool { return slices.Contains(q.Scopes, s) }))
		}
	})
}

// Explain and Pick agree, and the homes are the first two of one order that
// holds for the key whatever the hints say.
func TestExplainAgreesWithPick(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m, _ := drawMap(t, 6)
		q := Query{Target: chatOfM, Key: rapid.String().Draw(t, "key"), CanHoldHere: rapid.Bool().Draw(t, "can hold here")}
		choice, list := m.Explain(q, noon)
		require.Equal(t, m.Pick(q, noon), choice)
		chosen := 0
		for i, c := range list {
			require.NotEmpty(t, c.Why)
			require.Equal(t, min(i+1, homeSet+1)%(homeSet+1), c.Home)
			if c.Chosen {
				chosen++
				require.Equal(t, choice.Site.ID, c.Site)
				require.Equal(t, choice.Reason == ReasonWarmHome || choice.Reason == ReasonFirstHome, c.Home > 0)
			}
		}
		require.Equal(t, choice.Redirect, chosen == 1)
	})
}

func homesOf(t testing.TB, m *Map, key string) []string {
	t.Helper()
	first, second := m.homes(m.targets[chatOfM], nil, requestHash(key, chatOfM), nil)
	require.True(t, second.exists())
	return []string{m.sites[first.site].ID, m.sites[second.site].ID}
}

func manySites(t testing.TB, ids []string) *Map {
	t.Helper()
	var sites, placed []string
	for _, id := range ids {
		sites = append(sites, fmt.Sprintf(`{"id": %q, "url": "https://s.example"}`, id))
		placed = append(placed, fmt.Sprintf(`{"model": "m", "kind": "chat", "site": %q}`, id))
	}
	return parse(t, `{"sites": [`+strings.Join(sites, ",")+`], "placements": [`+strings.Join(placed, ",")+`]}`)
}

// A new site takes its share of the keys, and no key moves between two others.
func TestANewSiteMovesOnlyItsShareOfTheKeys(t *testing.T) {
	t.Parallel()
	const keys = 4000
	ids := []string{"fr", "us"}
	for n := 3; n <= 12; n++ {
		before := manySites(t, ids)
		added := fmt.Sprintf("site-%d", n)
		ids = append(ids, added)
		after := manySites(t, ids)
		moved := 0
		for i := range keys {
			key := fmt.Sprintf("key-%d", i)
			was, is := homesOf(t, before, key), homesOf(t, after, key)
			if is[0] != was[0] {
				moved++
				require.Equal(t, []string{added, was[0]}, is)
				continue
			}
			require.True(t, is[1] == was[1] || is[1] == added, "%v became %v", was, is)
		}
		share := float64(keys) / float64(n)
		require.InDelta(t, share, moved, share/4, "with %d sites", n)
	}
}

// Keys, models and kinds are spread over the sites evenly, each on its own.
func TestHomesAreSpread(t *testing.T) {
	t.Parallel()
	const n, requests = 10, 20_000
	var ids []string
	for i := range n {
		ids = append(ids, fmt.Sprintf("site-%d", i))
	}
	m := manySites(t, ids)
	byKey := map[string]int{}
	for i := range requests {
		homes := homesOf(t, m, fmt.Sprint(i))
		byKey[homes[0]]++
		byKey[homes[1]]++
	}
	require.Len(t, byKey, n)
	for site, times := range byKey {
		require.InDelta(t, 2*requests/n, times, requests/n/5, site)
	}
	hashes := map[uint64]string{}
	for _, key := range []string{"", "a", "b", "ab"} {
		for _, model := range []string{"", "a", "b", "ab"} {
			for _, kind := range target.Kinds {
				h := requestHash(key, target.Target{Model: model, Kind: kind})
				require.NotContains(t, hashes, h)
				hashes[h] = key
			}
		}
	}
}
