// SPDX-License-Identifier: Apache-2.0

// Package mask hides parts of other programs' output that look like secrets, so that it can be
// logged and shown to operators.
package mask

import "regexp"

// hidden replaces a secret.
const hidden = "***"

// secretWord matches a part of the name of a setting whose value is a secret.
const secretWord = `(?:key|token|secret|passw|passphrase|credential|authorization|signature)` //nolint:gosec // a pattern

// patterns are the forms of secrets, each with its replacement. A value of fewer than six
// characters is not hidden: it is more often a number or a word than a secret.
var patterns = []struct {
	form *regexp.Regexp
	to   string
}{
	// Schemes come before names with values, since their secret follows after a space.
	{regexp.MustCompile(`(?i)\b(bearer|basic)\s+[^\s"']{6,}`), "$1 " + hidden},
	{regexp.MustCompile(`://[^/\s@]+@`), "://" + hidden + "@"},
	{regexp.MustCompile(`(?i)([\w.-]*` + secretWord + `[\w.-]*["']?\s*[=:]\s*["']?)[^\s"'&,;*]{6,}`), "${1}" + hidden},
	{regexp.MustCompile(`(?i)(--?[\w-]*` + secretWord + `[\w-]*\s+["']?)[^\s"'&,;*-][^\s"'&,;*]{5,}`), "${1}" + hidden},
	{regexp.MustCompile(`([?&]sig=)[^\s"'&]{6,}`), "${1}" + hidden},
	{regexp.MustCompile(`\b(?:sk-|hf_|gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|AKIA|ASIA|AIza|eyJ)[\w./+=-]{8,}`), hidden},
}

// Secrets returns text with everything that looks like a secret replaced.
func Secrets(text string) string {
	for _, p := range patterns {
		text = p.form.ReplaceAllString(text, p.to)
	}
	return text
}
