// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"strings"
	"time"
)

// maxPasses bounds how often one request may come back through the rehold lane.
// Replicas that refuse leave routing, so an honest request stays far below.
const maxPasses = 64

// attemptWait is how long a pass waits for Envoy's record of the attempt before
// it. The record is sent first and comes within a millisecond.
const attemptWait = 50 * time.Millisecond

// failedAttempt gives up the replica that did not answer. It returns a refusal
// when the request must not be tried on another one.
func (st *stream) failedAttempt() *Refusal {
	passes := st.flight.pass()
	g := st.flight.take()
	if g == nil {
		return nil // the router was restarted in between
	}
	refused := st.flight.attemptRefused()
	reason := "ended the connection before its answer"
	if refused {
		reason = "refused the connection"
	}
	g.Failed(reason)
	g.Release()
	dead := !refused && st.flight.died() >= 2
	if dead || passes > maxPasses {
		return BackendError(st.req.Model)
	}
	return nil
}

// attemptRefused says whether the attempt that failed never reached its engine.
// An attempt without a record counts as one that did.
func (fl *flight) attemptRefused() bool {
	timer := time.NewTimer(attemptWait)
	defer timer.Stop()
	select {
	case refused := <-fl.failed:
		return refused
	case <-timer.C:
		return false
	}
}

// refusedConnection says whether an attempt never reached the engine: connection
// failure, no healthy host, overflow.
func refusedConnection(flags string) bool {
	for flag := range strings.SplitSeq(flags, ",") {
		switch flag {
		case "UF", "UH", "UO", "NC":
			return true
		}
	}
	return false
}
