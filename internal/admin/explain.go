// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"

	"github.com/holdgate/holdgate/internal/target"
	"github.com/holdgate/holdgate/sitemap"
)

// The values of Explanation.Decision.
const (
	DecisionServe    = "serve"
	DecisionQueue    = "queue" // served, when a slot is free
	DecisionRedirect = "redirect"
	DecisionHold     = "hold"
	DecisionRefuse   = "refuse"
)

// The values of Explanation.Scope.
const (
	ScopeSite   = "site"   // all routers of the site
	ScopeRouter = "router" // this one alone, because the shared server does not answer
)

// ExplainQuery describes a request whose decision is explained.
type ExplainQuery struct {
	Model string // or an alias
	Kind  target.Kind
	KeyID string // empty: a request without a key
	Hops  int    // how many times it was redirected before
}

// Explanation is what would happen to a request, and why.
type Explanation struct {
	Model  string `json:"model"`
	Kind   string `json:"kind"`
	KeyID  string `json:"key_id,omitzero"`
	Tenant string `json:"tenant,omitzero"`
	Hops   int    `json:"hops"`
	// Scope says for which routers quotas, hold limits and demand are counted; empty: the router
	// shares no state.
	Scope string `json:"scope,omitzero"`
	// Destination is how a request that comes from a gateway is sent on. From the router's own
	// bootstrap every request goes to a replica.
	Destination string `json:"destination,omitzero"`
	Decision    string `json:"decision"`
	// Status is the status of a redirect or a refusal, otherwise 0.
	Status     int    `json:"status,omitzero"`
	Code       string `json:"code,omitzero"`
	Message    string `json:"message,omitzero"`
	RetryAfter int    `json:"retry_after,omitzero"`
	// Site and URL are the target of a redirect.
	Site string `json:"site,omitzero"`
	URL  string `json:"url,omitzero"`
	// HoldBudget is how long a held request would wait.
	HoldBudget string `json:"hold_budget,omitzero"`
	Steps      []Step `json:"steps"`
	// Siblings are the other sites that have the model, best first.
	Siblings []sitemap.Candidate `json:"siblings,omitzero"`
}

// Step is one step of the decision. At most one is taken, and that one decides.
type Step struct {
	Step  string `json:"step"`
	Taken bool   `json:"taken"`
	Why   string `json:"why"`
}

// ErrQuery is the error of an invalid query.
var ErrQuery = errors.New("the query is wrong")

func (d Deps) explain(w http.ResponseWriter, r *http.Request) {
	q, err := readQuery(r)
	if err != nil {
		fail(w, http.StatusBadRequest, "request_invalid", err.Error())
		return
	}
	e, err := d.Explain(q)
	switch {
	case errors.Is(err, ErrQuery):
		fail(w, http.StatusBadRequest, "request_invalid", err.Error())
	case err != nil:
		d.Log.Error().Err(err).Msg("explaining a decision")
		fail(w, http.StatusInternalServerError, "internal", "the decision could not be explained")
	default:
		writeJSON(w, http.StatusOK, e)
	}
}

// readQuery parses a query. It refuses unknown parameters: if one were misspelled and
// ignored, another request would be explained.
func readQuery(r *http.Request) (q ExplainQuery, err error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return q, errors.New("the query is not well-formed")
	}
	for name, values := range query {
		if len(values) > 1 {
			return q, errors.New(strconv.Quote(name) + " is given twice")
		}
		value := values[0]
		switch name {
		case "model":
			q.Model = value
		case "key":
			q.KeyID = value
		case "kind":
			if q.Kind, err = target.ParseKind(value); err != nil {
				return q, errors.New("kind: " + err.Error())
			}
		case "hops":
			hops, err := strconv.ParseUint(value, 10, 7)
			if err != nil {
				return q, errors.New("hops must be a number from 0 to 127")
			}
			q.Hops = int(hops)
		default:
			return q, errors.New(strconv.Quote(name) + " is not a parameter: use model, kind, key and hops")
		}
	}
	if q.Model == "" {
		return q, errors.New("model is missing")
	}
	return q, nil
}
