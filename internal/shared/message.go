// SPDX-License-Identifier: Apache-2.0

package shared

import (
	"strconv"
	"strings"
)

// Named returns a message of a name and a text, in which either may have any characters.
func Named(name, text string) string { return strconv.Itoa(len(name)) + " " + name + text }

// CutNamed returns the name and the text of a message that Named made. ok is false for another one.
func CutNamed(message string) (name, text string, ok bool) {
	size, rest, _ := strings.Cut(message, " ")
	n, err := strconv.Atoi(size)
	if err != nil || n < 0 || n > len(rest) {
		return "", "", false
	}
	return rest[:n], rest[n:], true
}
