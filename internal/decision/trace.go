// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/admin"
	"github.com/holdgate/holdgate/internal/refusal"
	"github.com/holdgate/holdgate/internal/target"
	"github.com/holdgate/holdgate/sitemap"
)

// The steps of a decision, in their order.
const (
	stepKey        = "key"
	stepAlias      = "alias"
	stepAllowlist  = "allowlist"
	stepServedHere = "served_here"
	stepMap        = "map"
	stepRedirect   = "redirect"
	stepHold       = "hold"
	stepNotServed  = "not_served"
)

var allSteps = [...]string{stepKey, stepAlias, stepAllowlist, stepServedHere, stepMap, stepRedirect, stepHold, stepNotServed}

// trace records for explain why a run decided as it did. The methods of a nil trace do
// nothing.
type trace struct {
	*Decider
	asked  string // the model's name in the request
	target target.Target
	steps  []admin.Step

	siblings []sitemap.Candidate
	url      string // of the site of a redirect
}

// step adds a step.
func (t *trace) step(name string) {
	if t != nil {
		t.steps = append(t.steps, admin.Step{Step: name})
	}
}

// why adds a finding to the current step.
func (t *trace) why(text string) {
	if t == nil {
		return
	}
	s := &t.steps[len(t.steps)-1]
	if s.Why != "" {
		text = s.Why + "; " + text
	}
	s.Why = text
}

// all returns all steps: those that were not reached too. The last that was reached has
// decided.
func (t *trace) all() []admin.Step {
	t.steps[len(t.steps)-1].Taken = true
	for _, name := range allSteps[len(t.steps):] {
		t.steps = append(t.steps, admin.Step{Step: name, Why: "not reached"})
	}
	return t.steps
}

func (t *trace) replicas() {
	if t == nil {
		return
	}
	c := t.o.Registry.Capacity(t.target)
	if c.Replicas == 0 {
		t.why("no replica of the model is in routing for this kind" + t.otherKind())
		return
	}
	if c.Slots == 0 {
		t.why(fmt.Sprintf("replicas in routing: %d, with 0 slots for this router, which gets slots when requests wait here", c.Replicas))
		return
	}
	t.why(fmt.Sprintf("replicas in routing: %d, with %d of %d slots free", c.Replicas, c.Free, c.Slots))
}

func (t *trace) queued(reserved bool) {
	if reserved {
		t.why("the request waits for one in the capacity queue")
	} else {
		t.why("the request waits behind others, or for room in the admission gate")
	}
}

func (t *trace) loaded(s sitemap.State) {
	if t != nil {
		t.why(fmt.Sprintf("generation %d, %s %v ago", s.Map.Generation(), s.Source, time.Since(s.ReceivedAt).Round(time.Second)))
	}
}

// pick returns the map's choice of a site, and records how it was made.
func (t *trace) pick(m *sitemap.Map, q sitemap.Query) (c sitemap.Choice) {
	if t == nil {
		return m.Pick(q, time.Now())
	}
	c, t.siblings = m.Explain(q, time.Now())
	if c.Redirect {
		t.url = c.Site.URL
		t.why(c.Site.ID + ": " + c.Reason.Text())
	} else {
		t.why(c.Reason.Text())
	}
	return c
}

func (t *trace) placed() {
	if t == nil {
		return
	}
	if _, own := t.o.Backends.Here(t.target); own {
		t.why("a backend of this router has the model")
	} else {
		t.why("the map places the model here with scale_from_zero")
	}
}

// held describes the wait of a request for its model.
func (t *trace) held() {
	if t == nil {
		return
	}
	t.why(t.demand(t.target.Model))
	if wait := t.o.Registry.RoomWait(t.target.Model); wait != nil {
		t.why("it " + wait.Text(time.Now()))
	}
}

// demand describes the demand for a model.
func (t *trace) demand(model string) string {
	switch s := t.o.Site; {
	case s == nil:
		return fmt.Sprintf("distinct requests that wait for it: %d", t.o.Machine.Demand(model))
	case s.Up():
		return fmt.Sprintf("distinct requests that wait for it at all routers of the site: %d", s.Demand(model))
	}
	return fmt.Sprintf("distinct requests that wait for it at this router: %d", t.o.Machine.Demand(model))
}

// scope returns Explanation.Scope.
func (d *Decider) scope() string {
	switch {
	case d.o.Site == nil:
		return ""
	case d.o.Site.Up():
		return admin.ScopeSite
	}
	return admin.ScopeRouter
}

// failed records why a request may not wait.
func (t *trace) failed(err error) {
	if t == nil {
		return
	}
	why := err.Error()
	if _, failed := errors.AsType[*holdstate.FailedError](err); failed {
		if detail := t.o.Registry.WakeDetail(t.target.Model); detail != "" {
			why += ": " + detail
		}
	}
	t.why(why)
}

func (t *trace) notServed(r *refusal.Refusal) {
	switch {
	case t == nil:
	case r.Status == http.StatusServiceUnavailable:
		t.why("the router has started just now, and the model's agent may still be registering")
	default:
		t.why("no step before was taken")
		if name := t.similar(); name != "" {
			t.why("is " + name + " meant?")
		}
	}
}
