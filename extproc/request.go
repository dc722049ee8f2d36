// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"time"

	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/sitemap"
)

// Request is what a decision is made on.
type Request struct {
	ID        string // the request id that every log and answer carries
	ClientIDs [2]string
	Endpoint  *Endpoint
	Fields
	BodySize int64
	Arrived  time.Time
	// Patience is how long the client says it will wait; negative: it does not say.
	Patience time.Duration
	Seq      uint64 // the place of an earlier wait of the same request; 0: none
}

// Target is the model and kind that the request asks for.
func (r *Request) Target() sitemap.Target {
	return sitemap.Target{Model: r.Model, Kind: r.Endpoint.Kind}
}

// Decision is what happens to a request. Exactly one of Grant, Waiter and Refusal
// is set.
type Decision struct {
	Grant   holdstate.Grant   // serve it on this replica
	Waiter  *holdstate.Waiter // let it wait
	Held    bool              // with Waiter: no replica served it when it came
	Budget  time.Duration     // with Waiter: the hold budget, from arrival
	Refusal *Refusal
}

// Decider is the policy. Its methods are called by many streams at once.
type Decider interface {
	// Resolve is the model that a name stands for; most stand for themselves.
	Resolve(name string) string
	// Decide is called when the whole body is there.
	Decide(r *Request) Decision
	// RetryAfter says in how many seconds a sleeping model may be up.
	RetryAfter(model string) int
	// Models is the body of GET /v1/models; model is empty for the list. It is
	// nil for a model that is not known.
	Models(model string) []byte
}

// Observer learns what happens to requests. Its methods must not block.
type Observer interface {
	// Routed is called once per request, when it has its first slot.
	Routed(r *Request, g holdstate.Grant)
	// Ended is called once per request, when it has ended.
	Ended(r *Record)
}
