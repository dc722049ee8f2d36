// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/refusal"
	"github.com/holdgate/holdgate/internal/ticket"
)

// Decide is the usual policy with one model that may be held.
func (r *rig) Decide(q *Request) Decision {
	if r.decide != nil {
		return r.decide(q)
	}
	t := q.Target()
	waiting := holdstate.Request{Target: t, ClientIDs: q.ClientIDs, Bytes: q.BodySize, Seq: q.Seq, Claim: r.slots}
	if r.slots.Serving(t) {
		if g, took := r.slots.Take(nil); took == holdstate.Taken && !r.slots.shut() {
			return Decision{Grant: g}
		} else if took == holdstate.Taken {
			g.Release()
		}
		w, err := r.machine.Queue(waiting)
		if err != nil {
			return r.refuse(q, err)
		}
		return Decision{Waiter: w}
	}
	if q.Model != chatOfM.Model {
		return Decision{Refusal: refusal.ModelNotFound(q.Model)}
	}
	w, err := r.machine.Hold(waiting)
	if err != nil {
		return r.refuse(q, err)
	}
	return Decision{Waiter: w, Held: true, Budget: budget}
}

// refuse refuses a request that cannot wait.
func (r *rig) refuse(q *Request, why error) Decision {
	return Decision{Refusal: refusal.For(why, refusal.Wait{Model: q.Model, Wakes: r.machine})}
}

func (r *rig) Authenticate(c Credentials) (Call, *refusal.Refusal) {
	call, why := fakeCall{caller: Caller{TenantID: "default"}}, (*refusal.Refusal)(nil)
	if r.authenticate != nil {
		call, why = r.authenticate(c)
	}
	if why != nil {
		return nil, why
	}
	call.rig = r
	return call, nil
}

func (r *rig) Destination(string) Destination { return r.to }

func (r *rig) Picked(g holdstate.Grant) string { return g.Replica().Address + r.others }

func (r *rig) Picks() bool { return r.to == AsPicker || r.picks }

func (r *rig) Returned(model string, at holdstate.Replica) (Forward, Engine) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.returned = append(r.returned, model+" "+at.ID)
	return Forward{StripKeys: r.stripReturned}, Engine{KeyHeader: r.engineKey[0], Key: r.engineKey[1]}
}

func (r *rig) TicketRefused(why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ticketsRefused = append(r.ticketsRefused, ticket.Class(why))
}

func (r *rig) Noted(req *Request, n Note) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case n.Held:
		r.noted = append(r.noted, "held "+req.Model)
	case n.Left:
		r.noted = append(r.noted, "left "+req.Model)
	case n.Redirect != nil:
		r.noted = append(r.noted, "redirected "+req.Model+" "+n.Redirect.Site)
	case n.Refusal != nil:
		r.noted = append(r.noted, "refused "+req.Model+" "+n.Refusal.Code)
	}
}

func (r *rig) Resume() Call { return fakeCall{rig: r} }

// fakeCall is the Call of a request that the rig decides.
type fakeCall struct {
	*rig

	caller Caller
	strip  bool
}

func (c fakeCall) Caller() Caller { return c.caller }

func (c fakeCall) Forward() Forward { return Forward{StripKeys: c.strip} }

func (fakeCall) CheckBody(*Request) *refusal.Refusal { return nil }

func (r *rig) Recheck() *refusal.Refusal { return r.revoked }

func (r *rig) Resolve(name string) string {
	if name == "alias" {
		return chatOfM.Model
	}
	return name
}

func (r *rig) Ended(rec *Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.records = append(r.records, rec)
}

func (r *rig) Freed(holdstate.Grant, int) { r.freed.Add(1) }

func (r *rig) Engine(_ string, g holdstate.Grant) Engine {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e, special := r.engines[g.Replica().Address]; special {
		return e
	}
	return Engine{KeyHeader: r.engineKey[0], Key: r.engineKey[1]}
}

func (r *rig) Models(model string) []byte {
	switch model {
	case "":
		return []byte(`{"object":"list"}`)
	case chatOfM.Model, "org/name":
		return []byte(`{"id":"` + model + `"}`)
	}
	return nil
}

func (r *rig) Routed(*Request, holdstate.Grant) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.routed++
	if r.crash {
		crash(1)
	}
}

// crash is a programming error.
func crash(at int) int { return []int{}[at] }
