// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"strings"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/refusal"
)

// maxPasses bounds how often one request may come back through the rehold lane.
// Replicas that refuse leave routing, so an honest request stays far below.
const maxPasses = 64

// cameBack refuses a request that a replica sent on to this router, which is one in
// flight already, and reports the replica.
func (st *stream) cameBack() *refusal.Refusal {
	for name := range strings.SplitSeq(st.head.via, ",") {
		g, model, found := st.s.flights.sentTo(strings.TrimSpace(name))
		if g != nil {
			g.CameBack()
		}
		if found {
			return refusal.LoopDetected(model)
		}
	}
	return nil
}

// failedAttempt gives up the replica that did not answer. It returns a refusal
// when the request must not be tried on another one.
func (st *stream) failedAttempt() *refusal.Refusal {
	passes := st.flight.pass()
	g := st.flight.take()
	if g == nil {
		return nil // the router was restarted in between
	}
	// Without the header no attempt was made, so no engine died.
	failed, err := envoy.ParseFailed(st.head.failed)
	how := failDied
	switch {
	case err != nil || failed.Sent == 0:
		how = failRefused
	case failed.Received > 0 && st.flight.call.Engine(st.req.Model, g).NotTaken != "":
		how = failNotTaken
	case failed.Received > 0:
		g.Release() // the replica is up, and another one would answer no better
		return refusal.InvalidAnswer(st.req.Model)
	}
	why := st.noAnswer(g, how)
	if passes > maxPasses {
		return refusal.BackendError(st.req.Model)
	}
	return why
}

// failure is why a replica gave no answer.
type failure string

const (
	failRefused  failure = "refused the connection"
	failDied     failure = "ended the connection before its answer" // it had taken the request
	failNotTaken failure = "answered that it did not take the request"
)

// noAnswer gives up a replica. It returns a refusal when the request must not be tried
// again.
func (st *stream) noAnswer(g holdstate.Grant, how failure) *refusal.Refusal {
	g.Failed(string(how), how != failRefused)
	g.Release()
	if how == failDied && st.flight.died(g.Replica().Address) {
		return refusal.BackendError(st.req.Model)
	}
	return nil
}
