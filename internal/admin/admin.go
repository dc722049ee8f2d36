// SPDX-License-Identifier: Apache-2.0

// Package admin is the HTTP API for operators: metrics, health, the sibling map, the status
// of the router, explanations of decisions, and wakes. If tokens are configured, everything
// but metrics, health and the map's schema needs one of them as a bearer token.
package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"

	"github.com/holdgate/holdgate/internal/events"
	"github.com/holdgate/holdgate/sitemap"
)

// Deps has what the API reads and calls. Tokens, Explain, Status and SiteStatus may be nil;
// without Explain or Status its path does not exist.
type Deps struct {
	Tokens  []string // if empty, no token is needed
	Maps    *sitemap.Store
	Metrics prometheus.Gatherer
	// Ready returns why the router is not ready; "" if it is.
	Ready func() string
	// Warning returns what a router that is ready lacks; "" if nothing.
	Warning func() string
	// Explain explains a decision. Its error wraps ErrQuery if the query is invalid.
	Explain func(q ExplainQuery) (*Explanation, error)
	Status  func() *Status
	// SiteStatus is the answer of Status to site=1.
	SiteStatus func() *SiteStatus
	// Wake keeps a model wanted for span; WakeFailed ends its waiters because a wake failed.
	// Their errors wrap ErrUnknownModel.
	Wake       func(model string, span time.Duration) error
	WakeFailed func(model, reason string) error
	Events     *events.Log // nil: the path of the events does not exist
	Log        zerolog.Logger
}

// Handler returns the handler of the API.
func Handler(d Deps) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(d.Metrics, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if reason := d.Ready(); reason != "" {
			writeJSON(w, http.StatusServiceUnavailable, map[string]string{"status": "not ready", "reason": reason})
			return
		}
		ready := map[string]string{"status": "ready"}
		if warning := d.Warning(); warning != "" {
			ready["warning"] = warning
		}
		writeJSON(w, http.StatusOK, ready)
	})
	mux.HandleFunc("GET /v1/sitemap", d.authorized(d.getMap))
	mux.HandleFunc("PUT /v1/sitemap", d.authorized(d.putMap))
	mux.HandleFunc("POST /v1/wake/{model...}", d.authorized(d.wake))
	mux.HandleFunc("POST /v1/sitemap/hints", d.authorized(d.postHints))
	mux.HandleFunc("GET /v1/sitemap/schema", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/schema+json")
		_, _ = w.Write(sitemap.Schema())
	})
	if d.Explain != nil {
		mux.HandleFunc("GET /v1/explain", d.authorized(d.explain))
	}
	if d.Status != nil {
		mux.HandleFunc("GET /v1/status", d.authorized(d.status))
	}
	if d.Events != nil {
		mux.HandleFunc("GET /v1/events", d.authorized(d.events))
	}
	if d.Status != nil && d.Events != nil {
		d.handlePage(mux)
	}
	return d.guardBrowsers(jsonErrors(mux))
}

// status answers with the status of the router, or with site=1 of all routers of the site.
func (d Deps) status(w http.ResponseWriter, r *http.Request) {
	if d.SiteStatus != nil && r.URL.Query().Get("site") == "1" {
		writeJSON(w, http.StatusOK, d.SiteStatus())
		return
	}
	writeJSON(w, http.StatusOK, d.Status())
}

// authorized returns a handler that refuses calls without one of the tokens.
func (d Deps) authorized(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !d.allowed(r.Header.Get("Authorization")) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			fail(w, http.StatusUnauthorized, "unauthorized", "this call needs the token of --admin-token-file as a bearer token: holdgate sends that of --token-file")
			return
		}
		h(w, r)
	}
}

func (d Deps) allowed(authorization string) bool {
	if len(d.Tokens) == 0 {
		return true
	}
	token, _ := strings.CutPrefix(authorization, "Bearer ")
	given := sha256.Sum256([]byte(token))
	found := 0
	for _, t := range d.Tokens {
		want := sha256.Sum256([]byte(t))
		found |= subtle.ConstantTimeCompare(given[:], want[:])
	}
	return found == 1
}

func (d Deps) getMap(w http.ResponseWriter, r *http.Request) {
	s := d.Maps.State()
	if s.Map == nil {
		fail(w, http.StatusNotFound, "map_not_loaded", "no sibling map was pushed or restored yet")
		return
	}
	w.Header().Set("ETag", s.Map.ETag())
	w.Header().Set("X-Sitemap-Source", s.Source)
	w.Header().Set("Age", strconv.FormatInt(int64(time.Since(s.ReceivedAt).Seconds()), 10))
	if r.Header.Get("If-None-Match") == s.Map.ETag() {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(s.Map.JSON())
}

// putMap puts a pushed map in force, as a whole or not at all.
func (d Deps) putMap(w http.ResponseWriter, r *http.Request) {
	body, ok := readAll(w, r)
	if !ok {
		return
	}
	summary, err := d.Maps.PushIf(r.Context(), r.Header.Get("If-Match"), body, r.URL.Query().Get("force") == "1")
	d.answerPush(w, summary, err)
}

// readAll reads a body of at most sitemap.MaxBytes. If ok is false, a body that is too large
// has been answered, or the client is gone.
func readAll(w http.ResponseWriter, r *http.Request) (body []byte, ok bool) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, sitemap.MaxBytes))
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		fail(w, http.StatusRequestEntityTooLarge, "map_too_large", fmt.Sprintf("a sibling map has at most %d bytes", sitemap.MaxBytes))
	}
	return body, err == nil
}

// postHints replaces the hints of the map in force.
func (d Deps) postHints(w http.ResponseWriter, r *http.Request) {
	body, ok := readAll(w, r)
	if !ok {
		return
	}
	summary, err := d.Maps.PushHints(r.Context(), body)
	if err != nil {
		d.answerPush(w, sitemap.Summary{}, err)
		return
	}
	writeJSON(w, http.StatusOK, summary)
}

func (d Deps) answerPush(w http.ResponseWriter, summary sitemap.Summary, err error) {
	var problems sitemap.Problems
	var conflict *sitemap.ConflictError
	var persist *sitemap.PersistError
	switch {
	case errors.As(err, &problems):
		writeJSON(w, http.StatusBadRequest, map[string]any{"error": map[string]any{
			"code": "map_invalid", "message": "the map was not applied; every problem is listed", "problems": problems,
		}})
	case errors.As(err, new(*sitemap.MismatchError)):
		fail(w, http.StatusPreconditionFailed, "map_changed", "the map in force is not the one that If-Match names")
	case errors.As(err, &conflict):
		fail(w, http.StatusConflict, "map_generation", err.Error())
	case errors.As(err, &persist):
		d.Log.Error().Err(err).Msg("the map is in force but is not on disk")
		fail(w, http.StatusInternalServerError, "map_not_persisted", "the map is in force but could not be written to --map-file: "+persist.Error())
	case err != nil:
		fail(w, http.StatusBadRequest, "map_invalid", err.Error())
	default:
		d.Log.Info().Int64("generation", summary.Generation).Int("placements", summary.Placements).
			Int("holdable", summary.Holdable).Bool("unchanged", summary.Unchanged).Msg("sibling map applied")
		writeJSON(w, http.StatusOK, summary)
	}
}

func fail(w http.ResponseWriter, status int, code, message string) {
	writeJSON(w, status, map[string]any{"error": map[string]string{"code": code, "message": message}})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.MarshalWrite(w, v, json.Deterministic(true), jsontext.AllowInvalidUTF8(true))
}

// jsonErrors returns a handler that answers in JSON where the mux would answer in plain text.
func jsonErrors(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, pattern := mux.Handler(r); pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodPost} {
			other := r.Clone(r.Context())
			other.Method = method
			if _, pattern := mux.Handler(other); pattern != "" {
				w.Header().Set("Allow", method)
				fail(w, http.StatusMethodNotAllowed, "method_not_allowed", "this path takes "+method)
				return
			}
		}
		fail(w, http.StatusNotFound, "not_found", "this path is not part of the admin API")
	})
}
