// SPDX-License-Identifier: Apache-2.0

package hop

import (
	"crypto/sha256"
	"encoding/binary"
	"strings"

	"github.com/holdgate/holdgate/sitemap"
)

// HeadSum returns the hash of a method and a path that a token contains.
func HeadSum(method, pathAndQuery string) [sha256.Size]byte {
	text := binary.BigEndian.AppendUint32(nil, uint32(len(method))) //nolint:gosec // no method has 4 GiB
	text = append(text, method...)
	return sha256.Sum256(appendNormal(text, pathAndQuery))
}

// appendNormal appends a path and its query in a normal form, without the hop token. Clients
// rewrite a Location before they follow it: some escape quotes or brackets, some unescape
// letters, some write the digits of escapes in upper case. All of these have the same normal
// form. A delimiter and its escape differ in meaning, and stay different.
func appendNormal(out []byte, pathAndQuery string) []byte {
	const digits = "0123456789ABCDEF"
	_, rest := sitemap.Hops(pathAndQuery)
	if path, query, _ := strings.Cut(rest, "?"); query == "" {
		rest = path // "path?" is the same as "path", but "path??" is not
	}
	for i := 0; i < len(rest); i++ {
		c, escaped := rest[i], false
		if c == '%' && i+2 < len(rest) {
			high, low := nibble(rest[i+1]), nibble(rest[i+2])
			if high < 16 && low < 16 {
				c, escaped = high<<4|low, true
				i += 2
			}
		}
		if unreserved(c) || !escaped && strings.IndexByte("/?&=+;#", c) >= 0 {
			out = append(out, c)
			continue
		}
		out = append(out, '%', digits[c>>4], digits[c&15])
	}
	return out
}

// nibble returns the value of a hexadecimal digit, 16 for any other character.
func nibble(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10
	}
	return 16
}

func unreserved(c byte) bool {
	letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
	digit := c >= '0' && c <= '9'
	return letter || digit || strings.IndexByte("-._~", c) >= 0
}
