// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// shape is a file that has one of each.
type shape struct {
	name  string
	most  int64
	list  []string
	named map[string]string
}

func (s *shape) read(top Value) {
	top.Fields(map[string]func(Value){
		"name": func(v Value) { s.name = v.Name() },
		"most": func(v Value) { s.most = v.Number(10) },
		"list": func(v Value) { v.List(func(v Value) { s.list = append(s.list, v.Name()) }) },
		"named": func(v Value) {
			s.named = map[string]string{}
			v.Mapping(func(key *yaml.Node, v Value) {
				v.At(key).CheckName(key.Value)
				s.named[key.Value] = v.Name()
			})
		},
	}, "name")
}

func TestAGoodFileIsRead(t *testing.T) {
	t.Parallel()
	var s shape
	require.NoError(t, Rules{}.Parse([]byte("name: é\nmost: 0x0A\nlist: [a, b]\nnamed: {c d: '1'}\n"), s.read))
	require.Equal(t, shape{"é", 10, []string{"a", "b"}, map[string]string{"c d": "1"}}, s)

	s = shape{}
	require.NoError(t, Rules{EmptyOK: true}.Parse([]byte("name: a\nlist:\nnamed: ~\n"), s.read))
	require.Equal(t, shape{name: "a", named: map[string]string{}}, s)
}

func TestAllThatIsWrongIsReported(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"a list":             {"[]", []string{"must be a mapping, is a list (line 1)"}},
		"a word":             {"a", []string{`must be a mapping, is "a" (line 1)`}},
		"a set":              {"!!set {a: }", []string{"must be a mapping, has a tag of its own (line 1)"}},
		"nothing there":      {"{}", []string{"needs name (line 1)"}},
		"not known":          {"name: a\nnaem: b", []string{"naem: is not known (line 2)"}},
		"not known, a list":  {"name: a\nnaem:\n- b", []string{"naem: is not known (line 2)"}},
		"twice":              {"name: a\n\nname: b", []string{"name: is given twice: first in line 1 (line 3)"}},
		"three times":        {"name: a\nname: b\nname: c", []string{"name: is given twice: first in line 1 (line 2)", "name: is given twice: first in line 1 (line 3)"}},
		"unknown twice":      {"name: a\nb: 1\nb: 1", []string{"b: is not known (line 2)", "b: is given twice: first in line 2 (line 3)"}},
		"a merge":            {"name: a\n<<: {most: 1}", []string{"each key " + MustBeString + `, is the merge "<<" (line 2)`}},
		"a number as a key":  {"name: a\n1: b", []string{"each key " + MustBeString + `, is the int "1" (line 2)`}},
		"an anchor":          {"name: &a b\nlist: [*a]", []string{"list[0]: must be written out, is a reference to an anchor (line 2)"}},
		"an anchor as a key": {"name: &a b\n*a : c", []string{"must be written out, is a reference to an anchor (line 2)"}},
		"left out":           {"name:\nlist:\nnamed:", []string{"name: " + MustBeString + ", is empty (line 1)", "list: must be a list, is empty (line 2)", "named: must be a mapping, is empty (line 3)"}},
		"numbers": {"name: 1\nmost: 11\nlist: [1.5]", []string{
			"name: " + MustBeString + `, is the int "1" (line 1)`, `most: must be a whole number from 1 to 10, is the int "11" (line 2)`,
			"list[0]: " + MustBeString + `, is the float "1.5" (line 3)`,
		}},
		"no number":  {"name: a\nmost: '1'", []string{`most: must be a whole number from 1 to 10, is "1" (line 2)`}},
		"zero":       {"name: a\nmost: 0", []string{`most: must be a whole number from 1 to 10, is the int "0" (line 2)`}},
		"bad names":  {"name: ''\nlist: [\"\\t\", " + strings.Repeat("x", 257) + "]", []string{"name: must not be empty (line 1)", `list[0]: must not contain control characters, is "\t" (line 2)`, "list[1]: must have at most 256 bytes, has 257 (line 2)"}},
		"a key bad":  {"name: a\nnamed:\n  '': b", []string{`named[""]: must not be empty (line 3)`}},
		"tags":       {"name: !x a\nlist: !y []", []string{"name: " + MustBeString + ", has a tag of its own (line 1)", "list: must be a list, has a tag of its own (line 2)"}},
		"deep paths": {"name: a\nnamed: {b: [], c d: 1}", []string{"named.b: " + MustBeString + ", is a list (line 2)", `named["c d"]: ` + MustBeString + `, is the int "1" (line 2)`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := Rules{Show: Little, Brackets: true}.Parse([]byte(c.text), new(shape).read)
			require.EqualError(t, err, strings.Join(c.want, "\n"))
		})
	}
}

// A value, the name of a field and a tag, each of 45 bytes.
func TestShowBoundsWhatAMessageRepeats(t *testing.T) {
	t.Parallel()
	const long = "hg-0123456789abcdefghijklmnopqrstuvwxyzABCDEF"
	text := "name: a\nmost: " + long + "\n" + long + ": 1\nlist: !" + long + " b\n"
	const must = "most: must be a whole number from 1 to 10, is "
	for show, want := range map[Show]string{
		Values: must + `"` + long + `" (line 2)` + "\n" + long + ": is not known (line 3)\n" + `list: must be a list, is "b" (line 4)`,
		Little: must + `"hg-01234"… (line 2)` + "\n" + `"hg-01234"…: is not known (line 3)` + "\nlist: must be a list, has a tag of its own (line 4)",
	} {
		require.EqualError(t, Rules{Show: show}.Parse([]byte(text), new(shape).read), want)
	}
	err := Rules{}.Parse([]byte(text), new(shape).read)
	var found Problems
	require.ErrorAs(t, err, &found)
	require.Len(t, found, 3)
	require.NotContains(t, err.Error(), "hg")
	require.NotContains(t, err.Error(), "most")
}

func TestQuoteCutsBetweenCharacters(t *testing.T) {
	t.Parallel()
	for show, want := range map[Show]string{
		Values:  `"x` + strings.Repeat("é", 31) + `"…`,
		Little:  `"xééé"…`,
		Nothing: `""…`,
	} {
		require.Equal(t, want, show.quote("x"+strings.Repeat("é", 100)))
		require.Equal(t, `""`, show.quote(""))
	}
	require.Equal(t, `"`+strings.Repeat("x", 64)+`"`, Values.quote(strings.Repeat("x", 64)))
	require.Equal(t, `"`+strings.Repeat("x", 40)+`"`, Little.quote(strings.Repeat("x", 40)))
	require.Equal(t, `"xxxxxxxx"…`, Little.quote(strings.Repeat("x", 41)))
}

func TestPathsQuoteWhatIsNoWord(t *testing.T) {
	t.Parallel()
	for key, want := range map[string][2]string{
		"a":       {"p.a", "p.a"},
		"q/w.e-3": {"p.q/w.e-3", "p.q/w.e-3"},
		"a b":     {`p."a b"`, `p["a b"]`},
		"":        {`p.""`, `p[""]`},
		"é":       {`p."é"`, `p["é"]`},
	} {
		require.Equal(t, want[0], Rules{Show: Values}.member("p", key))
		require.Equal(t, want[1], Rules{Show: Values, Brackets: true}.member("p", key))
		require.Equal(t, strings.TrimPrefix(want[0], "p."), Rules{Show: Values}.member("", key))
	}
}
