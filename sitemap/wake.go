// SPDX-License-Identifier: Apache-2.0

package sitemap

import (
	"errors"
	"net/url"
	"time"
)

// The methods of a webhook.
const (
	methodPost = "POST"
	methodGet  = "GET"
)

// Wake is the webhook that is called when a model is wanted and no replica serves it.
type Wake struct {
	URL string
	// Method is POST or GET.
	Method string
	// Cooldown is the shortest time between two calls; 0 means the router's
	// default.
	Cooldown time.Duration
}

func readWake(r *reader) *Wake {
	w := &Wake{Method: methodPost}
	if !object(r, wakeFields, w) {
		return nil
	}
	return w
}

func (w *Wake) wire() *wireWake {
	if w == nil {
		return nil
	}
	out := &wireWake{URL: w.URL, Cooldown: durationText(w.Cooldown)}
	if w.Method != methodPost {
		out.Method = w.Method
	}
	return out
}

func (r *reader) method() string {
	s, ok := r.text()
	if ok && s != methodPost && s != methodGet {
		r.addHere("must be POST or GET, not %s", quote(s))
	}
	return s
}

func (r *reader) wakeURL() string {
	s, ok := r.text()
	if !ok {
		return ""
	}
	if message := checkWakeURL(s); message != "" {
		r.addHere("%s", message)
	}
	return s
}

// CheckWakeURL returns an error if s is not valid as the URL of a webhook.
func CheckWakeURL(s string) error {
	if message := checkWakeURL(s); message != "" {
		return errors.New(message)
	}
	return nil
}

// checkWakeURL returns what is wrong with the URL of a webhook, "" if it is valid. It allows
// http and a query, because hooks may be inside a cluster or behind a gateway. Secrets do not
// belong in the URL: they come from the file of headers.
func checkWakeURL(s string) string {
	u, message := parseURL(s)
	if message != "" {
		return message
	}
	if !httpURL(u) {
		return "must be an absolute http or https URL, like https://hooks.example.com/wake, not " + quote(s)
	}
	return checkURLParts(s, u)
}

func httpURL(u *url.URL) bool {
	return (u.Scheme == "https" || u.Scheme == "http") && u.Hostname() != ""
}
