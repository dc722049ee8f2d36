// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"crypto/sha256"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdgate/holdgate/extproc/body"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/hint"
	"github.com/holdgate/holdgate/internal/refusal"
	"github.com/holdgate/holdgate/internal/target"
)

// Credentials are what a request's caller is authenticated by.
type Credentials struct {
	Method, PathAndQuery  string
	Authorization, APIKey string
	// Metadata is Envoy's dynamic metadata at Options.IdentityMetadata; nil: none.
	Metadata *structpb.Struct
}

// Caller is who sent a request.
type Caller struct{ TenantID, KeyID string }

// Forward says how a request is changed before it is sent to an engine, whichever that is.
type Forward struct {
	// PathAndQuery replaces the request's path and query; empty: they are not changed.
	PathAndQuery string
	// StripKeys: engines do not get the caller's keys.
	StripKeys bool
}

// Redirect sends the caller to another site.
type Redirect struct{ Site, Location string }

// Request is a request as the decision sees it.
type Request struct {
	Caller       Caller
	Method       string
	PathAndQuery string // as received
	ID           string // the request id in every log and answer
	ClientIDs    [2]string
	Endpoint     *Endpoint
	body.Fields
	TextTokens int64 // an estimate of the text in the body
	BodySize   int64
	Arrived    time.Time
	// Patience is how long the client waits for its answer; negative: unknown.
	Patience time.Duration
	Seq      uint64 // its place among the waiters in an earlier wait; 0: none
	// Hint has the addresses to which the request may be sent; nil: to any.
	Hint *hint.Hint

	body *body.Body
}

// BodySum returns the SHA-256 of the body as received.
func (r *Request) BodySum() [sha256.Size]byte { return r.body.Sum() }

// Footprint estimates how many tokens the request takes on an engine: one for each 3.2
// bytes of text, and the largest output that it allows. Media are not counted.
func (r *Request) Footprint() int64 {
	return r.TextTokens + max(0, r.MaxTokens, r.MaxCompletionTokens)
}

// Target returns the model and kind that the request asks for.
func (r *Request) Target() target.Target {
	return target.Target{Model: r.Model, Kind: r.Endpoint.Kind}
}

// Decision is what happens to a request. Exactly one of Grant, Waiter, Redirect and
// Refusal is set.
type Decision struct {
	Grant  holdstate.Grant   // serve it on this replica
	Waiter *holdstate.Waiter // let it wait
	Held   bool              // with Waiter: no replica served it when it arrived
	Budget time.Duration     // with Waiter: the hold budget, from arrival
	// Impatient: with Waiter: the budget is the client's patience.
	Impatient bool
	Refusal   *refusal.Refusal
	// Outcome is what the metric of holds has counted for a request that was refused
	// instead of held; Pending: nothing.
	Outcome holdstate.Outcome
	// RateLimit is how many requests the caller's quota has left; empty: no quota.
	RateLimit string
	// Redirect is the site that has the model.
	Redirect *Redirect
}

// Decider is the policy. Its methods are safe for concurrent use.
type Decider interface {
	// Authenticate finds the caller of a request by its headers.
	Authenticate(c Credentials) (Call, *refusal.Refusal)
	// Resume returns the call of a request that an earlier process authenticated.
	Resume() Call
	// Returned returns how a request that came back through a gateway is changed for the
	// engine at a replica.
	Returned(model string, at holdstate.Replica) (Forward, Engine)
	// Picks reports whether the router chooses as a picker for some model.
	Picks() bool
}

// Call is the decision's handle for one request. It lives as long as the flight, and
// only one pass at a time uses it.
type Call interface {
	Caller() Caller
	Forward() Forward
	// CheckBody refuses a body that the token of a redirected request was not made for.
	// Only the first call checks, because an alias may be replaced in the body after it.
	CheckBody(r *Request) *refusal.Refusal
	// Resolve returns the model of an alias, and any other name unchanged.
	Resolve(name string) string
	// Decide decides what happens to the request. Its whole body must have been read.
	Decide(r *Request) Decision
	// Recheck returns a refusal when the caller's key is no longer valid.
	Recheck() *refusal.Refusal
	// Destination returns how the requests of a model are sent on.
	Destination(model string) Destination
	// Picked returns the addresses that a gateway is told for a request with a grant, separated
	// by commas: that of the grant, and others for the case that it fails.
	Picked(g holdstate.Grant) string
	// Engine returns how the engine of a grant for a model wants its requests.
	Engine(model string, g holdstate.Grant) Engine
	// Models returns the body of the answer to GET /v1/models; model is empty for the
	// list. It returns nil for a model that the caller may not use or that does not exist.
	Models(model string) []byte
}

// Observer is told what happens to requests. Its methods must not block.
type Observer interface {
	// Routed is called once per request, when it has its first slot.
	Routed(r *Request, g holdstate.Grant)
	// Ended is called once per request, when it has ended.
	Ended(r *Record)
	// Freed is called when slots of the grant's replica were released because it works on
	// fewer requests than it has slots taken.
	Freed(g holdstate.Grant, slots int)
	// TicketRefused is called when a request was refused because of its ticket.
	TicketRefused(why error)
	// Noted is called when something happened to a request other than being served. It must
	// copy what it keeps.
	Noted(r *Request, n Note)
}

// Note is what happened to a request. One field is set.
type Note struct {
	Held     bool // for the first time
	Left     bool // its client, while it was held
	Redirect *Redirect
	Refusal  *refusal.Refusal
}
