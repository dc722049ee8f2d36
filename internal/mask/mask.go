// SPDX-License-Identifier: Apache-2.0

// Package mask hides what looks like a secret in the words of other programs, so that
// they can be logged and shown to operators.
package mask

import "regexp"

// hidden takes the place of a secret.
const hidden = "***"

// secretWord is in the names of what has a secret.
const secretWord = `(?:key|token|secret|passw|passphrase|credential|authorization|signature)` //nolint:gosec // a pattern

// patterns are what a secret looks like, each with what it becomes. A value of fewer
// than six characters stays: it is a number or a word more often than a secret.
var patterns = []struct {
	form *regexp.Regexp
	to   string
}{
	// The value of a scheme comes after a space, so it goes before names with values.
	{regexp.MustCompile(`(?i)\b(bearer|basic)\s+[^\s"']{6,}`), "$1 " + hidden},
	{regexp.MustCompile(`://[^/\s@]+@`), "://" + hidden + "@"},
	{regexp.MustCompile(`(?i)([\w.-]*` + secretWord + `[\w.-]*["']?\s*[=:]\s*["']?)[^\s"'&,;*]{6,}`), "${1}" + hidden},
	{regexp.MustCompile(`(?i)(--?[\w-]*` + secretWord + `[\w-]*\s+["']?)[^\s"'&,;*-][^\s"'&,;*]{5,}`), "${1}" + hidden},
	{regexp.MustCompile(`([?&]sig=)[^\s"'&]{6,}`), "${1}" + hidden},
	{regexp.MustCompile(`\b(?:sk-|hf_|gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|AKIA|ASIA|AIza|eyJ)[\w./+=-]{8,}`), hidden},
}

// Secrets replaces what looks like a secret in text.
func Secrets(text string) string {
	for _, p := range patterns {
		text = p.form.ReplaceAllString(text, p.to)
	}
	return text
}
