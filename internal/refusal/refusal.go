// SPDX-License-Identifier: Apache-2.0

// Package refusal defines every answer that the router makes itself in place of an
// engine's. To add one, add a row to the table in table.go. The bodies of the three
// APIs are in body.go.
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

// Refusal is an answer that the router makes itself, without an engine.
type Refusal struct { //nolint:errname // it is an answer that is returned as an error
	Status     int
	Code       string
	Message    string
	RetryAfter int    // seconds; 0: no header
	Allow      string // of a 405

	site   string       // of a redirect
	shed   bool         // of a model that is up, because of load
	engine *engineError // nil for an error of the router
}

func (r *Refusal) Error() string { return fmt.Sprintf("%d %s: %s", r.Status, r.Code, r.Message) }

// ByPicker returns the refusal as the endpoint picker protocol has it: a request that is refused
// because of the load of a model that is up gets 429, because 503 says that there is no engine.
func (r *Refusal) ByPicker() *Refusal {
	if !r.shed {
		return r
	}
	shed := *r
	shed.Status = http.StatusTooManyRequests
	return &shed
}

// facts are the values for a row's text and Retry-After.
type facts struct {
	model, detail string
	seconds       int // Retry-After, where the row has no fixed number
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
	return &Refusal{Status: r.status, Code: r.code, Message: message, RetryAfter: seconds, shed: r.shed}
}

// maxShown limits how much of a model's name a message shows.
const maxShown = 256

// shown returns a model's name as messages show it.
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

// plain, ofModel, ofQuota and detailed add a row to the table. They return the function that
// makes its refusal.
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

// Redirected answers a request that another site serves.
func Redirected(model, site string) *Refusal {
	r := redirected(facts{model: model, detail: site})
	r.site = site
	return r
}

// RequestInvalid refuses a request that cannot be read.
func RequestInvalid(format string, args ...any) *Refusal {
	return requestInvalid(facts{detail: fmt.Sprintf(format, args...)})
}

// Unauthorized refuses a request without a valid key.
func Unauthorized(message string) *Refusal { return unauthorized(facts{detail: message}) }

// TicketInvalid refuses a request with a ticket that is not valid.
func TicketInvalid(message string) *Refusal { return ticketInvalid(facts{detail: message}) }

// NotFound refuses a path that is not an endpoint; meant is the endpoint that the
// client most likely wants, or empty.
func NotFound(meant string) *Refusal {
	if meant != "" {
		meant = ": use " + meant
	}
	return notFound(facts{detail: meant})
}

// MethodNotAllowed refuses a method that the endpoint does not accept.
func MethodNotAllowed(allow string) *Refusal {
	r := methodNotAllowed(facts{detail: allow})
	r.Allow = allow
	return r
}

// TooLarge refuses a body over the limit, in bytes.
func TooLarge(limit int64) *Refusal {
	return bodyTooLarge(facts{detail: strconv.FormatInt(limit, 10)})
}

// BrokenAnswer reports an answer that the engine did not finish.
func BrokenAnswer(message string) *Refusal { return engineFailed(facts{detail: message}) }

// LaneRefused reports a request that Envoy's lane to the engines refused with a status
// before any engine received it.
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

// Wakes has the learned wake times of models. *holdstate.Machine is one.
type Wakes interface {
	// RetryAfter returns the number of seconds until the model should be awake.
	RetryAfter(model string) int
	// Learned returns the same, or false while no wake of the model has been measured.
	Learned(model string) (seconds int, learned bool)
}

// Wait describes a wait that ended without a slot, or could not begin.
type Wait struct {
	Model     string
	Held      bool // no replica served the model when the request arrived
	Impatient bool // the client's own timeout ended the wait
	Wakes     Wakes
}

// For returns the refusal of a request that could not wait, or that waited and got no
// slot. why is an error of package holdstate.
func For(why error, w Wait) *Refusal {
	r := rowFor(why, w.Held)
	f := facts{model: w.Model, seconds: r.retryAfter.after(w)}
	if failed, ok := errors.AsType[*holdstate.FailedError](why); ok {
		f.detail = failed.Reason
	}
	return r.refusal(f)
}

// after returns the number of seconds for Retry-After.
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

// Label returns the metric label for an error because of which a request was refused by a
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

// rowFor returns the row for a cause, or that of a full queue if the cause is unknown.
// Where two rows have the cause, the later one is for held requests.
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
