// SPDX-License-Identifier: Apache-2.0

// Package page renders the operator's page of the admin port. All of it is in the program: the
// page needs nothing of another address, and its scripts and styles are files of their own, so
// that browsers can be told to run no others.
package page

import (
	"embed"
	"fmt"
	"html/template"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
)

//go:embed page.css page.js icon.svg
var files embed.FS

//go:embed page.html
var source string

var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"text": Text, "count": count,
	"clock": func(t time.Time) string { return t.UTC().Format("15:04:05") },
	"rfc":   func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
}).Parse(source))

// File returns a file of the page and its content type; ok is false if there is none of this
// name.
func File(name string) (content []byte, contentType string, ok bool) {
	types := map[string]string{"page.css": "text/css; charset=utf-8", "page.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml"}
	contentType, ok = types[name]
	if !ok {
		return nil, "", false
	}
	content, err := files.ReadFile(name)
	return content, contentType, err == nil
}

// Write writes the whole page.
func Write(w io.Writer, v *View) error {
	if err := templates.ExecuteTemplate(w, "page", v); err != nil {
		return fmt.Errorf("rendering the page: %w", err)
	}
	return nil
}

// WriteMain writes the part of the page that changes.
func WriteMain(w io.Writer, v *View) error {
	if err := templates.ExecuteTemplate(w, "main", v); err != nil {
		return fmt.Errorf("rendering the page: %w", err)
	}
	return nil
}

// Text returns a name as people can read it: characters that are not printed, or that change
// the direction of what follows, are shown by their numbers.
func Text(s string) string {
	if !strings.ContainsFunc(s, hidden) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if hidden(r) {
			fmt.Fprintf(&b, `\u{%x}`, r)
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// hidden reports whether a character has no printed form. A space is printed, other white
// space is not.
func hidden(r rune) bool { return !unicode.IsPrint(r) }

func count(n any, what string) string {
	text := fmt.Sprint(n)
	if text == "1" {
		return "1 " + what
	}
	return text + " " + what + "s"
}

// Span returns a duration in words, in at most two units.
func Span(d time.Duration) string {
	seconds := int64(max(0, d.Round(time.Second)) / time.Second)
	switch {
	case seconds < 60:
		return strconv.FormatInt(seconds, 10) + " s"
	case seconds < 3600:
		return fmt.Sprintf("%d min %d s", seconds/60, seconds%60)
	case seconds < 48*3600:
		return fmt.Sprintf("%d h %d min", seconds/3600, seconds/60%60)
	}
	return fmt.Sprintf("%d days", seconds/86400)
}
