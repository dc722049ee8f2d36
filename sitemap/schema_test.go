// SPDX-License-Identifier: Apache-2.0

package sitemap

import (
	"bytes"
	"encoding/json/v2"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// inexpressible lists the bad maps that a schema has to accept, with the
// reason.
var inexpressible = map[string]string{
	"generation-exponent":           "1e3 is an integer to a schema",
	"generation-fraction":           "1.0 is an integer to a schema",
	"hint-repeated":                 "two entries compared by some of their members",
	"hint-site-unknown":             "names that other entries have",
	"hint-time-before-the-calendar": "arithmetic",
	"hint-time-after-the-calendar":  "arithmetic",
	"hold-budget-above":             "arithmetic",
	"hold-budget-overflow":          "arithmetic",
	"member-twice":                  "a JSON value has no repeated members",
	"member-twice-escaped":          "a JSON value has no repeated members",
	"invalid-utf8":                  "the decoder replaces it before a schema sees it",
	"lone-surrogate":                "the decoder replaces it before a schema sees it",
	"placement-repeated":            "two entries compared by some of their members",
	"site-id-repeated":              "two entries compared by some of their members",
	"site-unknown":                  "names that other entries have",
	"url-port-too-big":              "arithmetic",
	"wake-cooldown-above":           "arithmetic",
	"wake-twice":                    "a JSON value has no repeated members",
	"wake-url-port":                 "arithmetic",
}

func compiledSchema(t testing.TB) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	require.NoError(t, c.AddResource("sitemap.json", doc))
	compiled, err := c.Compile("sitemap.json")
	require.NoError(t, err)
	return compiled
}

func TestSchemaAndParserAgreeOnTheTestData(t *testing.T) {
	t.Parallel()
	compiled := compiledSchema(t)
	valid := func(file string) error {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		value, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
		if err != nil {
			return err
		}
		return compiled.Validate(value)
	}
	good, err := filepath.Glob("testdata/good/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, good)
	for _, file := range good {
		require.NoError(t, valid(file), file)
	}
	bad, err := filepath.Glob("testdata/bad/*.json")
	require.NoError(t, err)
	var accepted []string
	for _, file := range bad {
		if valid(file) == nil {
			accepted = append(accepted, strings.TrimSuffix(filepath.Base(file), ".json"))
		}
	}
	require.Equal(t, slices.Sorted(maps.Keys(inexpressible)), slices.Sorted(slices.Values(accepted)))
}

// What the parser accepts the schema accepts, also in canonical form.
func TestSchemaAcceptsWhatTheParserAccepts(t *testing.T) {
	t.Parallel()
	compiled := compiledSchema(t)
	rapid.Check(t, func(t *rapid.T) {
		url := rapid.OneOf(
			rapid.StringMatching(`https?://[a-z0-9.-]{1,9}(:[0-9]{1,6})?(/[ -~]{0,9})?`),
			rapid.StringMatching(`[Hh]ttps://(\[[0-9a-f:.]{2,9}\]|[ -~]{1,5})([:/?#][ -~]{0,9})?`)).Draw(t, "url")
		budget := rapid.StringMatching(`[+-]?([0-9]{0,2}\.?[0-9]?(ns|us|µs|ms|s|m|h)){1,3}`).Draw(t, "budget")
		name := rapid.String().Draw(t, "name")
		at := rapid.StringMatching(`20[0-9]{2}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-6][0-9]:[0-6][0-9](\.[0-9]{1,10})?(Z|[+-][0-2][0-9]:[0-6][0-9])`).Draw(t, "at")
		text, err := json.Marshal(map[string]any{
			"sites":      []any{map[string]any{"id": "s", "url": url, "insecure": rapid.Bool().Draw(t, "insecure")}},
			"placements": []any{map[string]any{"model": name, "kind": "chat", "site": "here", "hold_budget": budget, "wake": map[string]any{"url": url}}},
			"hints":      []any{map[string]any{"model": "m", "kind": "chat", "site": "s", "state": "warm", "observed_at": at}},
		})
		if err != nil {
			return // name is not UTF-8
		}
		m, err := Parse(text, here)
		if err != nil {
			return
		}
		for _, form := range [][]byte{text, m.JSON()} {
			value, err := jsonschema.UnmarshalJSON(bytes.NewReader(form))
			require.NoError(t, err)
			require.NoError(t, compiled.Validate(value), "%s", form)
		}
	})
}

// The tables of fields and the schema have the same members, and require the
// same.
func TestSchemaHasTheFieldsOfTheParser(t *testing.T) {
	t.Parallel()
	type object struct {
		Required   []string       `json:"required"`
		Properties map[string]any `json:"properties"`
	}
	var doc struct {
		object

		Defs map[string]object `json:"$defs"`
	}
	require.NoError(t, json.Unmarshal(Schema(), &doc))
	same := func(o object, names, required []string) {
		require.Equal(t, slices.Sorted(slices.Values(names)), slices.Sorted(maps.Keys(o.Properties)))
		require.ElementsMatch(t, required, o.Required)
	}
	names, required := namesOf(documentFields)
	same(doc.object, names, required)
	names, required = namesOf(siteFields)
	same(doc.Defs["site"], names, required)
	names, required = namesOf(placementFields)
	same(doc.Defs["placement"], names, required)
	names, required = namesOf(wakeFields)
	same(doc.Defs["wake"], names, required)
	names, required = namesOf(hintFields)
	same(doc.Defs["hint"], names, required)
}

func namesOf[T any](fields []field[T]) (names, required []string) {
	for _, f := range fields {
		names = append(names, f.name)
		if f.required {
			required = append(required, f.name)
		}
	}
	return names, required
}

// The patterns must mean the same to every reader of schemas, so they use
// nothing that one of the common regular expression libraries lacks.
func TestSchemaPatternsAreSimple(t *testing.T) {
	t.Parallel()
	for _, p := range regexp.MustCompile(`"pattern": "(.*)"`).FindAllSubmatch(Schema(), -1) {
		require.NotRegexp(t, `\(\?|\\[dwsbDWSB]`, string(p[1]))
	}
	changed := Schema()
	changed[0] = 'x'
	require.NotEqual(t, changed, Schema())
}
