// SPDX-License-Identifier: Apache-2.0

package sitemap

import (
	"net/url"
	"strconv"
	"strings"
)

// hopName is the query parameter with the number of redirects, or a signed token.
const hopName = "hg_hop"

// Hops removes the parameter hg_hop from a path with query, and returns its value. If there
// are several, it removes all and returns the first value. It also recognizes an escaped
// name, because the next reader would decode it. The rest is unchanged.
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

// HopCount parses an unsigned value of hg_hop, a small number. It returns 0 if the value is
// not one.
func HopCount(value string) int {
	n, err := strconv.ParseUint(value, 10, 7)
	if err != nil {
		return 0
	}
	return int(n)
}

// unescape decodes a name or a value of a query. It returns an invalid one unchanged.
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

// Location returns the URL of a redirect: the site's URL with the path and the query of the
// request, in which hg_hop is replaced by token. Bytes that are not allowed in a URL are
// escaped, so that the result is always a URL at the site.
func Location(site *Site, pathAndQuery, token string) string {
	_, rest := Hops(pathAndQuery)
	path, query, _ := strings.Cut(rest, "?")
	var b strings.Builder
	b.Grow(len(site.URL) + len(rest) + len(hopName) + len(token) + 4)
	b.WriteString(strings.TrimRight(site.URL, "/"))
	if !strings.HasPrefix(path, "/") {
		b.WriteByte('/')
	}
	writeClean(&b, path, true)
	b.WriteByte('?')
	if query != "" {
		writeClean(&b, query, false)
		b.WriteByte('&')
	}
	b.WriteString(hopName)
	b.WriteByte('=')
	b.WriteString(url.QueryEscape(token))
	return b.String()
}

// writeClean writes a path or a query and escapes bytes that are not allowed in a URL. In a
// path it also escapes a percent sign that is not part of an escape, since URL parsers
// reject it.
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

// escapeAt reports whether the percent sign at i is followed by two hex digits.
func escapeAt(s string, i int) bool {
	return i+2 < len(s) && hexDigit(s[i+1]) && hexDigit(s[i+2])
}

func hexDigit(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}
