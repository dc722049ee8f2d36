// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"encoding/json/v2"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"
	"unicode"
)

// ErrUnknownModel is the error of a model that may not be held here and that no agent offers.
var ErrUnknownModel = errors.New("the model is not known here")

// How long a wake ahead of traffic keeps a model wanted.
const (
	defaultWake = 5 * time.Minute
	maxWake     = time.Hour
)

// maxReason is the longest reason of a failed wake, in bytes.
const maxReason = 256

const failedSuffix = "/failed"

// wake keeps a model wanted ahead of requests. For a path that ends in /failed it ends the
// model's waiters instead. The model is the rest of the path, decoded once, so that a name
// may have slashes. If a name itself ends in /failed, this slash must be encoded.
func (d Deps) wake(w http.ResponseWriter, r *http.Request) {
	model := r.PathValue("model")
	if name := strings.TrimSuffix(model, failedSuffix); name != "" && strings.HasSuffix(r.URL.EscapedPath(), failedSuffix) {
		d.wakeFailed(w, r, name)
		return
	}
	span := defaultWake
	if text := r.URL.Query().Get("for"); text != "" {
		var err error
		if span, err = time.ParseDuration(text); err != nil || span <= 0 || span > maxWake {
			fail(w, http.StatusBadRequest, "request_invalid", "for must be a duration such as 10m, above 0 and at most 1h")
			return
		}
	}
	if err := d.Wake(model, span); err != nil {
		fail(w, http.StatusNotFound, "model_not_found", err.Error())
		return
	}
	writeJSON(w, http.StatusAccepted, map[string]string{"model": model, "wanted_for": span.String()})
}

func (d Deps) wakeFailed(w http.ResponseWriter, r *http.Request, model string) {
	var body struct {
		Reason string `json:"reason"`
	}
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 4<<10))
	if err == nil && len(text) > 0 {
		err = json.Unmarshal(text, &body, json.RejectUnknownMembers(true))
	}
	hidden := func(c rune) bool { return !unicode.IsPrint(c) }
	if err != nil || len(body.Reason) > maxReason || strings.ContainsFunc(body.Reason, hidden) {
		fail(w, http.StatusBadRequest, "request_invalid", `the body must be empty or {"reason": TEXT} with at most 256 bytes of text on one line`)
		return
	}
	if body.Reason == "" {
		body.Reason = "the wake was reported failed"
	}
	if err := d.WakeFailed(model, body.Reason); err != nil {
		fail(w, http.StatusNotFound, "model_not_found", err.Error())
		return
	}
	writeJSON(w, http.StatusAccepted, map[string]string{"model": model})
}
