// SPDX-License-Identifier: Apache-2.0

package sitemap

import (
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/holdgate/holdgate/internal/target"
)

// The limits of values.
const (
	maxName     = 256
	maxURL      = 2048
	maxDuration = time.Hour // of a hold budget and of a cooldown
)

// rfc3339 rejects times that time.Parse accepts and the RFC does not allow: an hour of one
// digit, a comma before the fraction, an offset of 99 hours.
var rfc3339 = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$`)

// badKind marks an entry whose kind is invalid, for the checks that follow.
const badKind target.Kind = 255

// name reads the name of a model, a site or a scope. It returns "" if the name is invalid.
func (r *reader) name() string {
	s, ok := r.text()
	if !ok {
		return ""
	}
	if message := checkName(s); message != "" {
		r.addHere("%s", message)
		return ""
	}
	return s
}

func checkName(s string) string {
	if s == "" {
		return "must not be empty"
	}
	if len(s) > maxName {
		return "must be at most " + strconv.Itoa(maxName) + " bytes long, not " + strconv.Itoa(len(s))
	}
	if strings.ContainsFunc(s, unicode.IsControl) {
		return "must not contain control characters: " + quote(s)
	}
	return ""
}

func (r *reader) kind() target.Kind {
	s, ok := r.text()
	if !ok {
		return badKind
	}
	k, err := target.ParseKind(s)
	if err != nil {
		r.addHere("must be chat, embedding or rerank, not %s", quote(s))
		return badKind
	}
	return k
}

func (r *reader) duration() time.Duration {
	s, ok := r.text()
	if !ok {
		return 0
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 || d > maxDuration {
		r.addHere("must be a Go duration above 0 and at most 1h, like 240s, not %s", quote(s))
		return 0
	}
	return d
}

func (r *reader) warm() bool {
	s, ok := r.text()
	if ok && s != stateWarm && s != stateCold {
		r.addHere("must be warm or cold, not %s", quote(s))
	}
	return s == stateWarm
}

func (r *reader) time() time.Time {
	s, ok := r.text()
	if !ok {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, s)
	t = t.UTC()
	// The conversion to UTC may move the year out of the range of RFC 3339.
	if err != nil || t.Year() < 1 || t.Year() > 9999 || !rfc3339.MatchString(s) {
		r.addHere("must be an RFC 3339 time, like 2026-11-29T20:00:00Z, not %s", quote(s))
		return time.Time{}
	}
	return t
}

// checkURL returns what is wrong with a site's URL, "" if it is valid. The URL becomes the
// start of a Location header, so it must not be one that another parser could understand as
// another host.
func checkURL(s string, insecure bool) string {
	u, message := parseURL(s)
	switch {
	case message != "":
		return message
	case u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "":
		return "must be an absolute https URL, like https://fr-1.example.com, not " + quote(s)
	case u.Scheme == "http" && !insecure:
		return `must be https: http needs "insecure": true beside it`
	case u.User == nil && !strings.Contains(s, "#") && strings.Contains(s, "?"):
		return "must not contain a query"
	}
	return checkURLParts(s, u)
}

// parseURL parses a URL and checks the rules that all URLs share.
func parseURL(s string) (u *url.URL, message string) {
	if s == "" {
		return nil, "must not be empty"
	}
	if len(s) > maxURL {
		return nil, "must be at most " + strconv.Itoa(maxURL) + " bytes long, not " + strconv.Itoa(len(s))
	}
	u, err := url.Parse(s)
	if err != nil || strings.ContainsFunc(s, notInURL) {
		return nil, "is not a URL: " + quote(s)
	}
	return u, ""
}

func checkURLParts(s string, u *url.URL) string {
	if u.User != nil {
		return "must not contain user information"
	}
	if strings.Contains(s, "#") {
		return "must not contain a fragment"
	}
	if !hostOK(u.Hostname()) {
		return "has a host that is neither a DNS name nor an IP address: " + quote(u.Hostname())
	}
	if strings.HasSuffix(u.Host, ":") || !portOK(u.Port()) {
		return "has a port that is not a number from 1 to 65535"
	}
	return ""
}

// notInURL reports whether RFC 3986 forbids a character in a URL.
func notInURL(c rune) bool {
	return c <= ' ' || c > '~' || strings.ContainsRune("\"<>\\^`{|}", c)
}

func hostOK(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil {
		return !strings.Contains(host, "%")
	}
	return !strings.ContainsFunc(host, func(c rune) bool {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		digit := c >= '0' && c <= '9'
		return !letter && !digit && c != '-' && c != '.' && c != '_'
	})
}

func portOK(port string) bool {
	if port == "" {
		return true
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}
