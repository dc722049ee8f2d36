// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"fmt"
	"net/http"
	"time"

	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/internal/access"
	"github.com/holdgate/holdgate/internal/admin"
	"github.com/holdgate/holdgate/internal/refusal"
)

// Explain returns what Decide would return for a request now, and why. The
// request has no body. Explain takes no slot, holds nothing and charges nothing.
func (d *Decider) Explain(q admin.ExplainQuery) (*admin.Explanation, error) {
	key, err := d.keyOf(q.KeyID)
	if err != nil {
		return nil, err
	}
	c := &call{d: d, key: key, hops: q.Hops}
	r := &extproc.Request{Endpoint: &extproc.Endpoint{Kind: q.Kind}, Patience: -1}
	r.Model = c.Resolve(q.Model)
	t := &trace{Decider: d, asked: q.Model, target: r.Target()}
	e := &admin.Explanation{Model: r.Model, Kind: q.Kind.String(), KeyID: key.ID, Tenant: key.Tenant, Hops: q.Hops, Scope: d.scope(), Destination: string(d.destination(r.Model))}

	var v verdict
	if refused := t.key(key); refused != nil {
		v = refuse(refused)
		if key.ID == "" {
			e.Tenant = ""
		}
	} else {
		t.alias()
		decision := run{Decider: d, call: c, req: r, do: (*looking)(c), trace: t}
		v = decision.decide()
	}
	e.Steps, e.Siblings = t.all(), t.siblings
	switch {
	case v.Refusal != nil:
		e.Decision, e.Status, e.Code = admin.DecisionRefuse, v.Refusal.Status, v.Refusal.Code
		e.Message, e.RetryAfter = v.Refusal.Message, v.Refusal.RetryAfter
	case v.Redirect != nil:
		e.Decision, e.Status = admin.DecisionRedirect, http.StatusTemporaryRedirect
		e.Site, e.URL = v.Redirect.Site, t.url
	case v.Held:
		e.Decision, e.HoldBudget = admin.DecisionHold, v.Budget.String()
	case v.queued:
		e.Decision = admin.DecisionQueue
	default:
		e.Decision = admin.DecisionServe
	}
	return e, nil
}

// keyOf returns the key with an id, or for an empty id the key of anonymous requests.
func (d *Decider) keyOf(id string) (*access.Key, error) {
	if id == "" {
		return access.Anonymous(), nil
	}
	if d.keys == nil {
		return nil, fmt.Errorf("%w: this router has no --auth-file, so there is no key %q", admin.ErrQuery, id)
	}
	key := d.keys.Current().ByID(id)
	if key == nil {
		return nil, fmt.Errorf("%w: no key has the id %q", admin.ErrQuery, id)
	}
	return key, nil
}

// key traces the step of Authenticate, for a key that is given by its id.
func (t *trace) key(key *access.Key) *refusal.Refusal {
	t.step(stepKey)
	switch {
	case t.open():
		t.why("there is no --auth-file, so requests need no key")
	case t.keys == nil:
		t.why("Envoy authenticates callers: this is for an identity that may use every model")
	case key.ID == "":
		t.why("a request without a key is refused: name one with --key ID")
		return refusal.Unauthorized(needsKey)
	case key.Expired(time.Now()):
		t.why("the key has expired")
		return refusal.Unauthorized(needsKey)
	default:
		t.why("the key is good")
	}
	return nil
}

// alias traces the step of Resolve.
func (t *trace) alias() {
	t.step(stepAlias)
	if t.asked != t.target.Model {
		t.why(t.asked + " is an alias of " + t.target.Model)
	} else {
		t.why(t.asked + " is no alias, but the model's own name")
	}
}
