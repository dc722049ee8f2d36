// SPDX-License-Identifier: Apache-2.0

package sitemap

import (
	"encoding/json/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestProblemsReadAsOneLine(t *testing.T) {
	t.Parallel()
	_, err := Parse([]byte(`{"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6, "g": 7}`), here)
	require.EqualError(t, err, "a: is not a known field; b: is not a known field; c: is not a known field; "+
		"d: is not a known field; e: is not a known field; and 2 more")
	_, err = Parse([]byte(`7`), here)
	require.EqualError(t, err, "the map must be an object, not a number")
}

func TestProblemsAsJSON(t *testing.T) {
	t.Parallel()
	_, err := Parse([]byte(`{"sites": [{"id": "<b>", "url": "x"}]}`), here)
	text, merr := json.Marshal(err)
	require.NoError(t, merr)
	require.JSONEq(t, `[{"path": "sites[0].url", "message": "must be an absolute https URL, like https://fr-1.example.com, not \"x\""}]`, string(text))
}

// A map in which everything is wrong must not become gigabytes of problems.
func TestTheListOfProblemsIsBounded(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"wrong types":   `{"placements": [` + strings.Repeat("1,", MaxBytes/2-20) + "1]}",
		"missing":       `{"hints": [` + strings.Repeat("{},", MaxBytes/3-20) + "{}]}",
		"unknown":       "{" + strings.Repeat(`"x":0,`, MaxBytes/6-2) + `"x":0}`,
		"unknown sites": `{"placements": [` + strings.Repeat(`{"model":"m","kind":"chat","site":"x"},`, 100_000) + `{}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Parse([]byte(text), here)
			var problems Problems
			require.ErrorAs(t, err, &problems)
			require.Len(t, problems, maxProblems+1)
			require.Equal(t, Problem{Message: "has more problems: only the first 1000 are listed"}, problems[maxProblems])
			require.NotEmpty(t, problems[0].Path)
		})
	}
}

func TestLongValuesAreCutBetweenCharacters(t *testing.T) {
	t.Parallel()
	require.Equal(t, `"`+strings.Repeat("x", 64)+`"`, quote(strings.Repeat("x", 64)))
	require.Equal(t, `"`+strings.Repeat("x", 64)+`"...`, quote(strings.Repeat("x", 65)))
	require.Equal(t, `"`+strings.Repeat("x", 63)+`"...`, quote(strings.Repeat("x", 63)+"éé"))
}
