// SPDX-License-Identifier: Apache-2.0

package sitemap

import (
	"net/url"
	"strconv"
	"strings"
)

// hopName is the query parameter that counts redirects, or proves them.
const hopName = "hg_hop"

// Hops takes the parameter hg_hop out of a path with its query. The value is
// the first one's; all of them are stripped, also those that are written with
// escapes, because the next reader would decode them. What remains is byte for
// byte as it came.
func Hops(pathAndQuery string) (value, stripped string) {
	path, query, ok := strings.Cut(pathAndQuery, "?")
	if !ok || !strings.Contains(query, hopName) && !strings.Contains(query, "%") {
		return "", pathAndQuery
	}
	var kept []string
	found := false
	for pair := range strings.SplitSeq(query, "&") {
		name, text, _ := strings.Cut(pair, "=")
		if unescape(name) != hopName {
			kept = append(kept, pair)
			continue
		}
		if !found {
			value, found = unescape(text), true
		}
	}
	switch {
	case !found:
		return "", pathAndQuery
	case len(kept) == 0:
		return value, path
	}
	return value, path + "?" + strings.Join(kept, "&")
}

// HopCount reads the value of hg_hop where no secret signs it: a small number.
// Anything else counts nothing.
func HopCount(value string) int {
	n, err := strconv.ParseUint(value, 10, 7)
	if err != nil {
		return 0
	}
	return int(n)
}

// unescape decodes a name or a value, or leaves it when it is no good.
func unescape(s string) string {
	if !strings.ContainsAny(s, "%+") {
		return s
	}
	decoded, err := url.QueryUnescape(s)
	if err != nil {
		return s
	}
	return decoded
}

// Location is where a redirect sends a request: the URL of the site from the
// map, the path and the query as they came, and the token as hg_hop, in place
// of any that came. Bytes that no URL may have, which no proxy lets through,
// are escaped, so that the result is always one URL at the site.
func Location(site *Site, pathAndQuery, token string) string {
	_, rest := Hops(pathAndQuery)
	path, query, asked := strings.Cut(rest, "?")
	var b strings.Builder
	b.Grow(len(site.URL) + len(rest) + len(hopName) + len(token) + 4)
	b.WriteString(strings.TrimRight(site.URL, "/"))
	if !strings.HasPrefix(path, "/") {
		b.WriteByte('/')
	}
	writeClean(&b, path, true)
	b.WriteByte('?')
	if asked && query != "" {
		writeClean(&b, query, false)
		b.WriteByte('&')
	}
	b.WriteString(hopName)
	b.WriteByte('=')
	b.WriteString(url.QueryEscape(token))
	return b.String()
}

// writeClean copies what may stand in a path or a query and escapes what may
// not. In a path, readers also reject a percent sign that escapes nothing.
func writeClean(b *strings.Builder, s string, path bool) {
	const digits = "0123456789ABCDEF"
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c > '~' || c == '#' || path && c == '%' && !escapeAt(s, i) {
			b.WriteByte('%')
			b.WriteByte(digits[c>>4])
			b.WriteByte(digits[c&15])
			continue
		}
		b.WriteByte(c)
	}
}

// escapeAt tells whether the percent sign at i is followed by two hex digits.
func escapeAt(s string, i int) bool {
	return i+2 < len(s) && hexDigit(s[i+1]) && hexDigit(s[i+2])
}

func hexDigit(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}
