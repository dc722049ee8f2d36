// SPDX-License-Identifier: Apache-2.0

package sitemap

import (
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHopsTakesTheFirstAndStripsAll(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]struct{ value, stripped string }{
		"":                               {"", ""},
		"/v1/rerank":                     {"", "/v1/rerank"},
		"/v1/rerank?":                    {"", "/v1/rerank?"},
		"/v1/rerank?a=%zz&&b=&=c&d":      {"", "/v1/rerank?a=%zz&&b=&=c&d"},
		"/hg_hop=1":                      {"", "/hg_hop=1"},
		"/p?hg_hop=1":                    {"1", "/p"},
		"/p?hg_hop":                      {"", "/p"},
		"/p?hg_hop=":                     {"", "/p"},
		"/p?hg_hop=1&a=b":                {"1", "/p?a=b"},
		"/p?a=b&hg_hop=1":                {"1", "/p?a=b"},
		"/p?a=b&hg_hop=2&c=d&hg_hop=1&e": {"2", "/p?a=b&c=d&e"},
		"/p?hg_hop=&hg_hop=1":            {"", "/p"},
		"/p?a=hg_hop=1&b=%68":            {"", "/p?a=hg_hop=1&b=%68"},
		"/p?hg%5Fhop=1":                  {"1", "/p"},
		"/p?a&%68%67_hop=%31&hg_hop=2":   {"1", "/p?a"},
		"/p?hg_hop=a=b":                  {"a=b", "/p"},
		"/p?hg_hop=%zz":                  {"%zz", "/p"},
		"/p?xhg_hop=1&hg_hopx=2":         {"", "/p?xhg_hop=1&hg_hopx=2"},
		"/p?HG_HOP=1":                    {"", "/p?HG_HOP=1"},
		"/p?a&&hg_hop=1&":                {"1", "/p?a&&"},
		"/p?a?hg_hop=1":                  {"", "/p?a?hg_hop=1"},
	} {
		value, stripped := Hops(in)
		require.Equal(t, want.value, value, in)
		require.Equal(t, want.stripped, stripped, in)
	}
}

func TestHopCountIgnoresWhatIsNoSmallNumber(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]int{
		"0": 0, "1": 1, "2": 2, "007": 7, "127": 127,
		"": 0, "-1": 0, "+1": 0, " 1": 0, "1 ": 0, "1.0": 0, "0x1": 0, "1_0": 0, "128": 0, "99999999999999999999": 0, "one": 0, "\u0661": 0,
	} {
		require.Equal(t, want, HopCount(value), "%q", value)
	}
}

func TestLocationKeepsPathAndQueryByteForByte(t *testing.T) {
	t.Parallel()
	const base = "https://fr-1.example.com"
	for _, c := range []struct{ url, path, want string }{
		{base, "/v1/chat/completions", base + "/v1/chat/completions?hg_hop=T"},
		{base, "/v1/chat/completions?", base + "/v1/chat/completions?hg_hop=T"},
		{base, "/v1/x?a=1&b=%41%zz+&&c", base + "/v1/x?a=1&b=%41%zz+&&c&hg_hop=T"},
		{base, "/v1/x?b=%2e%2E/../[]|^`{}'\"<>\\", base + "/v1/x?b=%2e%2E/../[]|^`{}'\"<>\\&hg_hop=T"},
		{base, "/v1/x?hg_hop=old&a=1", base + "/v1/x?a=1&hg_hop=T"},
		{base, "/a%2Fb//c/./..", base + "/a%2Fb//c/./..?hg_hop=T"},
		{base + "/", "/v1/x", base + "/v1/x?hg_hop=T"},
		{base + ":8443/base", "/v1/x", base + ":8443/base/v1/x?hg_hop=T"},
		{base + "/base/", "/v1/x", base + "/base/v1/x?hg_hop=T"},
		{"https://[2001:db8::1]:443", "/v1/x", "https://[2001:db8::1]:443/v1/x?hg_hop=T"},
	} {
		require.Equal(t, c.want, Location(&Site{URL: c.url}, c.path, "T"))
	}
}

func TestLocationNeverLeavesTheSite(t *testing.T) {
	t.Parallel()
	const base = "https://fr-1.example.com"
	for path, want := range map[string]string{
		"":                           base + "/?hg_hop=T",
		"*":                          base + "/*?hg_hop=T",
		"//evil.example/x":           base + "//evil.example/x?hg_hop=T",
		".evil.example":              base + "/.evil.example?hg_hop=T",
		"@evil.example":              base + "/@evil.example?hg_hop=T",
		":80@evil.example":           base + "/:80@evil.example?hg_hop=T",
		"https://evil.example/x?y=z": base + "/https://evil.example/x?y=z&hg_hop=T",
		`\\evil.example`:             base + `/\\evil.example?hg_hop=T`,
		"/a\r\nSet-Cookie: b=c":      base + "/a%0D%0ASet-Cookie:%20b=c?hg_hop=T",
		"/a?b=\r\nX: c\x00\x7f":      base + "/a?b=%0D%0AX:%20c%00%7F&hg_hop=T",
		"/a#b?c#d":                   base + "/a%23b?c%23d&hg_hop=T",
		"/ä?ö":                       base + "/%C3%A4?%C3%B6&hg_hop=T",
		"/100%":                      base + "/100%25?hg_hop=T",
		"/%4":                        base + "/%254?hg_hop=T",
		"/%zz%41":                    base + "/%25zz%41?hg_hop=T",
	} {
		require.Equal(t, want, Location(&Site{URL: base}, path, "T"))
	}
	require.Equal(t, base+"/a?hg_hop=x%26y%23%0D", Location(&Site{URL: base}, "/a", "x&y#\r"))
}

// FuzzLocation: whatever the user sends, the result is one URL in clean ASCII
// with the scheme and the host of the map, and the token in it is ours.
func FuzzLocation(f *testing.F) {
	for _, seed := range []string{"/v1/chat/completions?a=1", "//e/x", "/a\r\nb: c", "/p?hg_hop=1&%68g_hop=2#", "@e", "/%", "?", ""} {
		f.Add("https://fr-1.example.com/base/", seed, "a.b-c_d")
	}
	f.Add("http://[::1]:80", "/x", "&hg_hop=1")
	f.Fuzz(func(t *testing.T, base, pathAndQuery, token string) {
		if checkURL(base, true) != "" {
			return
		}
		want, err := url.Parse(base)
		require.NoError(t, err)
		location := Location(&Site{URL: base}, pathAndQuery, token)
		u, err := url.Parse(location)
		require.NoError(t, err)
		require.Equal(t, want.Scheme, u.Scheme)
		require.Equal(t, want.Host, u.Host)
		require.Nil(t, u.User)
		require.Empty(t, u.Fragment)
		require.False(t, strings.ContainsFunc(location, func(c rune) bool { return c <= ' ' || c > '~' }), "%q", location)
		require.True(t, strings.HasPrefix(location, strings.TrimRight(base, "/")+"/"))

		value, rest := Hops(location)
		require.Equal(t, token, value)
		_, stripped := Hops(pathAndQuery)
		again, clean := Hops(stripped)
		require.Empty(t, again)
		require.Equal(t, stripped, clean)
		if strings.HasPrefix(stripped, "/") && !strings.ContainsFunc(stripped, func(c rune) bool { return c <= ' ' || c > '~' || c == '#' || c == '%' }) {
			require.Equal(t, strings.TrimRight(base, "/")+strings.TrimSuffix(stripped, "?"), rest)
		}
	})
}
