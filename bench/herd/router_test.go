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
	"github.com/holdgate/holdgate/internal/grpctest"
	"github.com/holdgate/holdgate/internal/refusal"
)

const (
	interval   = 15 * time.Second // of keepalives
	holdBudget = 5 * time.Minute
)

// router is a site behind the real ext_proc server, with simulated engines. As Decider
// it decides as holdgate serve does for a model that sleeps.
type router struct {
	*site
	server *extproc.Server
	envoy  *grpc.ClientConn

	mu      sync.Mutex
	arrived map[*claim]*client
	clients map[string]*client // by request id
	records []*extproc.Record
	routed  int
}

// newRouter returns a router in a bubble. A request may wait for a slot for slotWait;
// an engine works at it for a second and for more.
func newRouter(t *testing.T, policyText string, slotWait, more time.Duration) *router {
	t.Helper()
	d := &router{site: newSite(t, policyText, false), arrived: map[*claim]*client{}, clients: map[string]*client{}}
	d.server = extproc.New(extproc.Options{
		Keepalive: interval, RequestTimeout: slotWait, AdmitPark: 250 * time.Millisecond, MaxRequestBytes: 1 << 20,
		MaxBodyBytesTotal: 1 << 28, RelayMaxBytes: 1 << 20, LateError: extproc.LateErrorBody,
	}, extproc.Deps{Decider: d, Observer: d, Wakes: d.machine, Relay: engines{d.site, more}, Log: zerolog.Nop()})
	server := grpc.NewServer(extproc.ServerOptions()...)
	d.server.Register(server)
	d.envoy = grpctest.Serve(t, server, grpctest.Unix)
	return d
}

// Authenticate implements extproc.Decider.
func (d *router) Authenticate(c extproc.Credentials) (extproc.Call, *refusal.Refusal) {
	return call{d, extproc.Caller{TenantID: access.DefaultTenant, KeyID: c.APIKey}}, nil
}

// Resume implements extproc.Decider.
func (d *router) Returned(string, holdstate.Replica) (extproc.Forward, extproc.Engine) {
	return extproc.Forward{}, extproc.Engine{}
}

func (d *router) Resume() extproc.Call { return call{d, extproc.Caller{}} }

// call is the Call of a request. Every request is held.
type call struct {
	*router
	caller extproc.Caller
}

// Caller implements extproc.Call.
func (c call) Caller() extproc.Caller { return c.caller }

// Decide implements extproc.Call.
func (d *router) Decide(r *extproc.Request) extproc.Decision {
	c := d.ledger.claim(r.Caller.KeyID, r.Footprint())
	d.mu.Lock()
	d.arrived[c] = d.clients[r.ID]
	d.mu.Unlock()
	w, err := d.machine.Hold(holdstate.Request{Target: r.Target(), Key: r.Caller.KeyID, Bytes: r.BodySize, Seq: r.Seq, Claim: c})
	if err != nil {
		return extproc.Decision{Refusal: refusal.For(err, refusal.Wait{Model: r.Model, Wakes: d.machine})}
	}
	return extproc.Decision{Waiter: w, Held: true, Budget: holdBudget}
}

// Forward implements extproc.Call.
func (*router) Forward() extproc.Forward { return extproc.Forward{} }

// CheckBody implements extproc.Call.
func (*router) CheckBody(*extproc.Request) *refusal.Refusal { return nil }

// Resolve implements extproc.Call.
func (*router) Resolve(name string) string { return name }

// Recheck implements extproc.Call.
func (*router) Recheck() *refusal.Refusal { return nil }

// Destination implements extproc.Call.
func (*router) Destination(string) extproc.Destination { return extproc.ToReplica }

// Picked implements extproc.Call.
func (*router) Picked(g holdstate.Grant) string { return g.Replica().Address }

// Picks implements extproc.Decider.
func (*router) Picks() bool { return false }

// Engine implements extproc.Call.
func (*router) Engine(string, holdstate.Grant) extproc.Engine { return extproc.Engine{} }

// Models implements extproc.Call.
func (*router) Models(string) []byte { return nil }

// Routed implements extproc.Observer.
func (d *router) Routed(*extproc.Request, holdstate.Grant) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.routed++
}

// Ended implements extproc.Observer.
func (d *router) Ended(r *extproc.Record) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.records = append(d.records, r)
}

// statuses counts the recorded requests by status.
func (d *router) statuses() map[int]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := map[int]int{}
	for _, r := range d.records {
		all[r.Status]++
	}
	return all
}

// served returns the clients that had a slot, in order.
func (d *router) served() []*client {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []*client
	for _, s := range d.ledger.slots() {
		all = append(all, d.arrived[s.claim])
	}
	return all
}

// TicketRefused implements extproc.Observer.
func (*router) TicketRefused(error) {}

// Noted implements extproc.Observer.
func (*router) Noted(*extproc.Request, extproc.Note) {}

// Freed implements extproc.Observer.
func (*router) Freed(holdstate.Grant, int) {}
