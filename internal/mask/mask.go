// SPDX-License-Identifier: Apache-2.0

// Package mask hides what looks like a secret in the text of other programs, so that it can
// be logged and shown to operators.
package mask

import "regexp"

// hidden replaces a secret.
const hidden = "***"

// secretWord is part of the names of settings with a secret value.
const secretWord = `(?:key|token|secret|passw|passphrase|credential|authorization|signature)` //nolint:gosec // a pattern

// patterns are the forms of secrets, each with what replaces it. A value of fewer than six
// characters stays: it is more often a number or a word than a secret.
var patterns = []struct {
	form *regexp.Regexp
	to   string
}{
	// Schemes come before names with values: their secret comes after a space.
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
