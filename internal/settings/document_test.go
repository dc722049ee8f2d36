// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestADocumentIsOneAndNotTooLarge(t *testing.T) {
	t.Parallel()
	const many = "must hold one YAML document"
	for name, c := range map[string]struct {
		rules Rules
		text  string
		want  string
	}{
		"nothing":               {Rules{}, "", "must not be empty"},
		"a comment":             {Rules{}, "# a", "must not be empty"},
		"at the limit":          {Rules{MaxBytes: 4}, "a: b", ""},
		"over the limit":        {Rules{MaxBytes: 3}, "a: b", "must have at most 3 bytes"},
		"without a limit":       {Rules{}, strings.Repeat("#\n", 1<<20) + "a: b", ""},
		"two":                   {Rules{}, "a\n---\nb", many},
		"an empty second one":   {Rules{Show: Values}, "a\n---\n", many},
		"a broken second one":   {Rules{Show: Little}, "a\n---\n[", "is not YAML: line 3: did not find expected node content"},
		"the same in a secret":  {Rules{}, "a\n---\n[", many},
		"an empty one":          {Rules{}, "---\n", ""},
		"an empty one, refused": {Rules{EmptyOK: true}, "---\n", "must not be empty"},
		"an empty mapping":      {Rules{EmptyOK: true}, "{}", ""},
		"broken":                {Rules{Show: Values}, "a: [", "is not YAML: line 1: did not find expected node content"},
		"broken, little shown":  {Rules{Show: Little}, "a: [", "is not YAML: line 1: did not find expected node content"},
		"broken, nothing shown": {Rules{}, "a: [", "is not YAML: see line 1"},
		"no anchor":             {Rules{Show: Values}, "a: *word", "is not YAML: unknown anchor 'word' referenced"},
		"the same, hidden":      {Rules{Show: Little}, "a: *word", "is not YAML: it refers to an anchor that is not there"},
		"the same in secrets":   {Rules{}, "a: *word", "is not YAML"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			top, err := c.rules.document([]byte(c.text))
			if c.want == "" {
				require.NoError(t, err)
				require.NotNil(t, top)
				return
			}
			require.EqualError(t, err, c.want)
			require.Nil(t, top)

			err = c.rules.Parse([]byte(c.text), func(Value) { t.Error("it was read") })
			require.Equal(t, Problems{{Message: c.want}}, err)
		})
	}
}

func TestAProblemIsOneLine(t *testing.T) {
	t.Parallel()
	require.Equal(t, "a.b: is bad (line 3)\nis bad", Problems{{"a.b", 3, "is bad"}, {"", 0, "is bad"}}.Error())
}

func TestAfterAHundredProblemsTheRestIsNotListed(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]int{99: 99, 100: 100, 101: 101, 1000: 101} {
		err := Rules{}.Parse([]byte("a"), func(top Value) {
			for range n {
				top.Add("is bad")
			}
		})
		var found Problems
		require.ErrorAs(t, err, &found)
		require.Len(t, found, want)
		last := found[want-1].String()
		require.Equal(t, n > 100, last == "more than 100 problems: the rest is not listed", last)
	}
}

func TestProblemsAreCollectedByPath(t *testing.T) {
	t.Parallel()
	var p Problems
	require.NoError(t, p.Err())
	p.Check("--a", nil)
	require.NoError(t, p.Err())
	p.Check("--a", errors.New("is bad"))
	p.Add("--b", "must be at most %d", 1)
	require.Equal(t, Problems{{Path: "--a", Message: "is bad"}, {Path: "--b", Message: "must be at most 1"}}, p.Err())
	require.Equal(t, "--a: is bad; --b: must be at most 1", p.Join("; "))
}

func TestASecretFileIsReportedByLinesAlone(t *testing.T) {
	t.Parallel()
	err := Rules{}.Parse([]byte("hush: [hush, 1]\nname: {hush: a}\nhush: b\n"), new(shape).read)
	require.EqualError(t, err, strings.Join([]string{
		"is not known (line 1)", MustBeString + " (line 2)", "is given twice: first in line 1 (line 3)",
	}, "\n"))
}
