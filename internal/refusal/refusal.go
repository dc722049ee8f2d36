// SPDX-License-Identifier: Apache-2.0

// Package refusal has every answer that the router makes itself in place of an engine's.
// To add one, add a row to the table in table.go. The bodies of the three APIs are in
// body.go.
package refusal

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/holdgate/holdgate/holdstate"
)

// Refusal is an answer of the router itself, made without any engine.
type Refusal struct { //nolint:errname // it is an answer that travels as an error
	Status     int
	Code       string
	Message    string
	RetryAfter int    // seconds; 0: no header
	Allow      string // of a 405

	site   string       // of a redirect
	engine *engineError // nil: it is the router's own
}

func (r *Refusal) Error() string { return fmt.Sprintf("%d %s: %s", r.Status, r.Code, r.Message) }

// facts are what a row's text and Retry-After are filled in with.
type facts struct {
	model, detail string
	seconds       int // where the row has no number of its own
}

func (r *row) refusal(f facts) *Refusal {
	seconds := f.seconds
	if r.retryAfter >= 0 {
		seconds = int(r.retryAfter)
	}
	message := os.Expand(r.text, func(name string) string {
		switch name {
		case "model":
			return shown(f.model)
		case "retry":
			return inSeconds(seconds)
		default:
			return f.detail
		}
	})
	return &Refusal{Status: r.status, Code: r.code, Message: message, RetryAfter: seconds}
}

// maxShown is how much of a client's own text a message repeats.
const maxShown = 256

// shown returns a model's name as a message repeats it.
func shown(model string) string {
	if len(model) <= maxShown {
		return model
	}
	return strings.ToValidUTF8(model[:maxShown], "") + "…"
}

func inSeconds(n int) string {
	if n == 1 {
		return "1 second"
	}
	return strconv.Itoa(n) + " seconds"
}

// add adds a row to the table.
func add(r row) *row {
	rows = append(rows, &r)
	return &r
}

func plain(r row) func() *Refusal {
	added := add(r)
	return func() *Refusal { return added.refusal(facts{}) }
}

func ofModel(r row) func(model string) *Refusal {
	added := add(r)
	return func(model string) *Refusal { return added.refusal(facts{model: model}) }
}

func ofQuota(r row) func(seconds int) *Refusal {
	added := add(r)
	return func(seconds int) *Refusal { return added.refusal(facts{seconds: seconds}) }
}

func detailed(r row) func(facts) *Refusal { return add(r).refusal }

// Redirected is the answer to a request that another site serves.
func Redirected(model, site string) *Refusal {
	r := redirected(facts{model: model, detail: site})
	r.site = site
	return r
}

// RequestInvalid is a request that cannot be read.
func RequestInvalid(format string, args ...any) *Refusal {
	return requestInvalid(facts{detail: fmt.Sprintf(format, args...)})
}

// Unauthorized is a request without a good key.
func Unauthorized(message string) *Refusal { return unauthorized(facts{detail: message}) }

// NotFound is a path that is no endpoint; meant is the one that the client most likely
// wants, empty when there is none.
func NotFound(meant string) *Refusal {
	if meant != "" {
		meant = ": use " + meant
	}
	return notFound(facts{detail: meant})
}

// MethodNotAllowed is a method that the endpoint does not take.
func MethodNotAllowed(allow string) *Refusal {
	r := methodNotAllowed(facts{detail: allow})
	r.Allow = allow
	return r
}

// TooLarge is a body over the limit, in bytes.
func TooLarge(limit int64) *Refusal {
	return bodyTooLarge(facts{detail: strconv.FormatInt(limit, 10)})
}

// BrokenAnswer is an answer that the engine did not finish.
func BrokenAnswer(message string) *Refusal { return engineFailed(facts{detail: message}) }

// LaneRefused is a request that Envoy's own lane to the engines refused with a status
// before any engine had it.
func LaneRefused(status int) *Refusal {
	switch {
	case status == http.StatusRequestHeaderFieldsTooLarge:
		return HeadersTooLarge()
	case status == http.StatusRequestEntityTooLarge:
		return RequestTooLarge()
	case status < http.StatusInternalServerError:
		r := InvalidHTTP()
		r.Status = status
		return r
	}
	return RouterUnavailable()
}

// Wakes is what is known of the wakes of models; *holdstate.Machine is one.
type Wakes interface {
	// RetryAfter returns in how many seconds the model should be awake.
	RetryAfter(model string) int
	// Learned is RetryAfter, or false while nothing was learned of the model's wakes.
	Learned(model string) (seconds int, learned bool)
}

// Wait is a wait that ended without a slot, or could not begin.
type Wait struct {
	Model     string
	Held      bool // the request was held: no replica served it when it came
	Impatient bool // the client's own clock ended the wait
	Wakes     Wakes
}

// For returns the refusal of a request that could not wait, or that waited and got no
// slot. The reason why is an error of package holdstate.
func For(why error, w Wait) *Refusal {
	r := rowFor(why, w.Held)
	f := facts{model: w.Model, seconds: r.retryAfter.after(w)}
	if failed, ok := errors.AsType[*holdstate.FailedError](why); ok {
		f.detail = failed.Reason
	}
	return r.refusal(f)
}

// after returns in how many seconds the client should come back.
func (r retryAfter) after(w Wait) int {
	switch r {
	case wakeOrNow:
		if _, learned := w.Wakes.Learned(w.Model); w.Impatient && !learned {
			return 1
		}
		return w.Wakes.RetryAfter(w.Model)
	case wake:
		return w.Wakes.RetryAfter(w.Model)
	default:
		return int(r)
	}
}

// Label returns the metric's label for the reason why a request was turned away from a
// model that is up.
func Label(why error) string { return rowFor(why, false).label }

// Labels returns every label that Label may return.
func Labels() []string {
	var all []string
	for _, r := range rows {
		if r.label != "" && !slices.Contains(all, r.label) {
			all = append(all, r.label)
		}
	}
	return all
}

// rowFor returns the row with a cause; that of a full queue for an unknown one. Where two
// rows have the cause, the one for held requests is the later one.
func rowFor(why error, held bool) *row {
	var found *row
	for _, r := range rows {
		if r.cause != nil && errors.Is(why, r.cause) && (held || !r.held) {
			found = r
		}
	}
	if found == nil {
		return rowFor(holdstate.ErrNoQueue, held)
	}
	return found
}
