// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/access"
	"github.com/holdgate/holdgate/internal/admin"
	"github.com/holdgate/holdgate/internal/admission"
	"github.com/holdgate/holdgate/internal/refusal"
	"github.com/holdgate/holdgate/internal/target"
	"github.com/holdgate/holdgate/sitemap"
)

// Explain says what Decide would say to a request at this moment, and why. It
// takes no slot, holds nothing and charges nothing.
func (d *Decider) Explain(q admin.ExplainQuery) (*admin.Explanation, error) {
	key, err := d.keyOf(q.KeyID)
	if err != nil {
		return nil, err
	}
	t := target.Target{Model: d.o.Policies().Resolve(q.Model), Kind: q.Kind}
	x := &explaining{Decider: d, who: &call{d: d, key: key, hops: q.Hops}, t: t, asked: q.Model, now: time.Now()}
	x.Model, x.Kind, x.KeyID, x.Tenant, x.Hops = t.Model, t.Kind.String(), key.ID, key.Tenant, q.Hops
	x.run()
	return &x.Explanation, nil
}

// keyOf gives the key with an id. Without an id it is that of a request without a
// key.
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

// explaining is one explanation in the making.
type explaining struct {
	*Decider
	admin.Explanation

	who   *call
	t     target.Target
	asked string // the model's name in the request
	now   time.Time

	m    *sitemap.Map // of the step "map"
	here bool
	p    sitemap.Placement
}

// run goes through the steps of Decide. Each says why it decides or does not; the
// first that sets Decision is the last that is looked at.
func (x *explaining) run() {
	for _, step := range []struct {
		name string
		look func() (why string)
	}{
		{"key", x.admitted},
		{"alias", x.alias},
		{"allowlist", x.allowlist},
		{"served_here", x.servedHere},
		{"map", x.loaded},
		{"redirect", x.redirect},
		{"hold", x.held},
		{"not_served", x.otherwise},
	} {
		if x.Decision != "" {
			x.Steps = append(x.Steps, admin.Step{Step: step.name, Why: "not reached"})
			continue
		}
		why := step.look()
		x.Steps = append(x.Steps, admin.Step{Step: step.name, Why: why, Taken: x.Decision != ""})
	}
}

func (x *explaining) refuse(r *refusal.Refusal) {
	x.Decision = admin.DecisionRefuse
	x.Status, x.Code, x.Message, x.Explanation.RetryAfter = r.Status, r.Code, r.Message, r.RetryAfter
}

func (x *explaining) admitted() string {
	key := x.who.key
	switch {
	case x.open():
		return "there is no --auth-file, so everybody is let in"
	case x.keys == nil:
		return "who sends a request is found out by Envoy: this is for an identity that may use every model"
	case key.ID == "":
		x.Tenant = ""
		x.refuse(refusal.Unauthorized(needsKey))
		return "a request without a key is not let in: name one with --key ID"
	case key.Expired(x.now):
		x.refuse(refusal.Unauthorized(needsKey))
		return "the key has expired"
	}
	return "the key is good"
}

func (x *explaining) alias() string {
	if x.asked != x.t.Model {
		return fmt.Sprintf("%s is an alias of %s", x.asked, x.t.Model)
	}
	return x.asked + " is no alias, but the model's own name"
}

func (x *explaining) allowlist() string {
	if !x.who.key.Allowed(x.t.Model) {
		x.refuse(refusal.ModelForbidden(x.t.Model))
		return "the model is not in the models of the key"
	}
	return "the caller may use the model"
}

func (x *explaining) servedHere() string {
	c := x.o.Registry.Capacity(x.t)
	if c.Replicas == 0 {
		return "no replica of the model is in routing for this kind" + x.otherKind()
	}
	why := fmt.Sprintf("replicas in routing: %d, with %d of %d slots free", c.Replicas, c.Free, c.Slots)
	if quota := x.who.key.Peek(x.t.Model, c.Replicas, x.now); !quota.OK {
		x.refuse(refusal.RateLimited(quota.RetryAfter))
		return why + "; the quota of the key is used up"
	}
	return why + x.capacityFor()
}

// capacityFor says whether there is room and a slot for a request of unknown size,
// and what it waits for.
func (x *explaining) capacityFor() string {
	w := x.o.Capacity.Attempts(x.t, x.who.key, 0)
	room, slot, err := w.Look()
	if err != nil {
		x.refuse(refusal.For(err, refusal.Wait{Model: x.t.Model}))
		return "; " + err.Error()
	}
	waits := x.o.Machine.Waiting(x.t)
	if room && slot && !waits {
		x.Decision = admin.DecisionServe
		return ""
	}
	err = x.o.Machine.WouldQueue(x.t, room && !waits)
	switch {
	case err == nil && (!room || waits):
		x.Decision = admin.DecisionQueue
		return "; the request waits behind others, or for room in the admission gate"
	case err == nil:
		x.Decision = admin.DecisionQueue
		return "; the request waits for one in the capacity queue"
	case !errors.Is(err, holdstate.ErrNoQueue):
	case !room, x.roomAwaited(x.t.Model):
		err = holdstate.ErrNoRoom
	case x.further(&w):
		x.Decision = admin.DecisionServe
		return "; a further step of the policy has a slot"
	}
	x.refuse(refusal.For(err, refusal.Wait{Model: x.t.Model}))
	return fmt.Sprintf("; %v", err)
}

// further is what serve does for a request that may not wait.
func (x *explaining) further(w *admission.Attempts) bool {
	for w.Next() {
		if _, slot, _ := w.Look(); slot {
			return true
		}
	}
	return false
}

func (x *explaining) loaded() string {
	s := x.o.Maps.State()
	x.p, x.here = Placements{s.Map, x.o.Backends}.Here(x.t)
	if x.o.SiteID != "" {
		x.m = s.Map
	}
	switch {
	case x.here && x.m == nil:
		return "there is no sibling map, and a backend of this router needs none"
	case x.o.SiteID == "":
		x.refuse(refusal.ModelNotFound(x.t.Model))
		return "the router has no --site-id, so it redirects and holds nothing"
	case x.m == nil:
		x.refuse(refusal.MapNotLoaded())
		return "no sibling map was pushed or restored yet"
	}
	return fmt.Sprintf("generation %d, %s %v ago", x.m.Generation(), s.Source, x.now.Sub(s.ReceivedAt).Round(time.Second))
}

func (x *explaining) redirect() string {
	switch {
	case x.m == nil:
		return "without a sibling map no other site is known"
	case x.who.key.RedirectNever:
		return "the key has redirect: never"
	}
	choice, siblings := x.m.Explain(x.who.asks(x.t, x.here && x.p.ScaleFromZero), x.now)
	x.Siblings = siblings
	if choice.Redirect {
		x.Decision, x.Status = admin.DecisionRedirect, http.StatusTemporaryRedirect
		x.Site, x.URL = choice.Site.ID, choice.Site.URL
		return choice.Site.ID + ": " + choice.Reason.Text()
	}
	return choice.Reason.Text()
}

func (x *explaining) held() string {
	switch {
	case !x.here:
		return "the map does not place the model at this site for this kind"
	case !x.p.ScaleFromZero:
		return "the map places the model here without scale_from_zero"
	}
	placed := "the map places the model here with scale_from_zero"
	if _, own := x.o.Backends.Here(x.t); own {
		placed = "a backend of this router has the model"
	}
	if quota := x.who.key.Peek(x.t.Model, 1, x.now); !quota.OK {
		x.refuse(refusal.RateLimited(quota.RetryAfter))
		return placed + "; the quota of the key is used up"
	}
	if err := x.o.Machine.WouldHold(holdstate.Request{Target: x.t, Key: x.who.key.Line()}); err != nil {
		x.refuse(x.notHeld(x.t.Model, err))
		if detail := x.o.Registry.WakeDetail(x.t.Model); detail != "" && errors.As(err, new(*holdstate.FailedError)) {
			return fmt.Sprintf("%s; %v: %s", placed, err, detail)
		}
		return fmt.Sprintf("%s; %v", placed, err)
	}
	x.Decision = admin.DecisionHold
	x.HoldBudget = cmp.Or(x.p.HoldBudget, x.o.HoldBudget).String()
	why := fmt.Sprintf("%s; distinct requests that wait for it: %d", placed, x.o.Machine.Demand(x.t.Model))
	if wait := x.o.Registry.RoomWait(x.t.Model); wait != nil {
		why += "; it " + wait.Text(x.now)
	}
	return why
}

func (x *explaining) otherwise() string {
	x.refuse(x.notHere(x.t.Model, x.here && !x.p.ScaleFromZero))
	if x.Status == http.StatusServiceUnavailable {
		return "the router has started just now, and the model's agent may still be registering"
	}
	if name := x.similar(); name != "" {
		return fmt.Sprintf("no step before was taken; is %s meant?", name)
	}
	return "no step before was taken"
}
