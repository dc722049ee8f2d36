// SPDX-License-Identifier: Apache-2.0

package herd

import (
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/grpc"

	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/access"
	"github.com/holdgate/holdgate/internal/admission"
	"github.com/holdgate/holdgate/internal/refusal"
)

const (
	interval   = 15 * time.Second // of keepalives
	holdBudget = 5 * time.Minute
)

// door is a site behind the real ext_proc server, with engines that a test plays. Its
// policy is the part of holdgate serve's that a model has which sleeps.
type door struct {
	*site
	server *extproc.Server
	envoy  *grpc.ClientConn

	mu      sync.Mutex
	arrived map[*admission.Attempts]*client
	clients map[string]*client // by request id
	records []*extproc.Record
	routed  int
}

// newDoor makes a door in a bubble. A request may wait for a slot for slotWait, and an
// engine works at it for another second than more.
func newDoor(t *testing.T, policyText string, slotWait, more time.Duration) *door {
	t.Helper()
	d := &door{site: newSite(t, policyText, false), arrived: map[*admission.Attempts]*client{}, clients: map[string]*client{}}
	d.server = extproc.New(extproc.Options{
		Keepalive: interval, RequestTimeout: slotWait, AdmitPark: 250 * time.Millisecond, MaxRequestBytes: 1 << 20,
		MaxBodyBytesTotal: 1 << 28, RelayMaxBytes: 1 << 20, LateError: extproc.LateErrorBody,
	}, extproc.Deps{Decider: d, Observer: d, Wakes: d.machine, Relay: engines{d.site, more}, Log: zerolog.Nop()})
	server := grpc.NewServer(extproc.ServerOptions()...)
	d.server.Register(server)
	d.envoy = serve(t, server)
	return d
}

// Authenticate is part of extproc.Decider.
func (d *door) Authenticate(c extproc.Credentials) (extproc.Call, *refusal.Refusal) {
	return call{d, extproc.Caller{TenantID: access.DefaultTenant, KeyID: c.APIKey}}, nil
}

// Resume is part of extproc.Decider.
func (d *door) Resume() extproc.Call { return call{d, extproc.Caller{}} }

// CameBack is part of extproc.Decider.
func (*door) CameBack(holdstate.Grant) {}

// call is the call of a request at a door, which decides all alike.
type call struct {
	*door
	caller extproc.Caller
}

// Caller is part of extproc.Call.
func (c call) Caller() extproc.Caller { return c.caller }

// Decide is part of extproc.Call.
func (d *door) Decide(r *extproc.Request) extproc.Decision {
	wish := &admission.Attempts{Key: &access.Key{ID: r.Caller.KeyID, Share: 1}, Tokens: r.Footprint()}
	d.mu.Lock()
	d.arrived[wish] = d.clients[r.ID]
	d.mu.Unlock()
	w, err := d.machine.Hold(holdstate.Request{Target: r.Target(), Key: r.Caller.KeyID, Bytes: r.BodySize, Seq: r.Seq, Detail: wish})
	if err != nil {
		return extproc.Decision{Refusal: refusal.For(err, refusal.Wait{Model: r.Model, Wakes: d.machine})}
	}
	return extproc.Decision{Waiter: w, Held: true, Budget: holdBudget}
}

// Forward is part of extproc.Call.
func (*door) Forward() extproc.Forward { return extproc.Forward{} }

// CheckBody is part of extproc.Call.
func (*door) CheckBody(*extproc.Request) *refusal.Refusal { return nil }

// Resolve is part of extproc.Call.
func (*door) Resolve(name string) string { return name }

// Recheck is part of extproc.Call.
func (*door) Recheck() *refusal.Refusal { return nil }

// Engine is part of extproc.Call.
func (*door) Engine(string, holdstate.Grant) extproc.Engine { return extproc.Engine{} }

// Models is part of extproc.Call.
func (*door) Models(string) []byte { return nil }

// Routed is part of extproc.Observer.
func (d *door) Routed(*extproc.Request, holdstate.Grant) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.routed++
}

// Ended is part of extproc.Observer.
func (d *door) Ended(r *extproc.Record) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.records = append(d.records, r)
}

// statuses counts how the requests ended on record.
func (d *door) statuses() map[int]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := map[int]int{}
	for _, r := range d.records {
		all[r.Status]++
	}
	return all
}

// served are those who had a slot, in order.
func (d *door) served() []*client {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []*client
	for _, s := range d.ledger.slots() {
		all = append(all, d.arrived[s.wish])
	}
	return all
}

// Freed is part of extproc.Observer.
func (*door) Freed(holdstate.Grant, int) {}
