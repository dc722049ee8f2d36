// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"strings"

	"github.com/holdgate/holdgate/envoy"
)

// maxPasses bounds how often one request may come back through the rehold lane.
// Replicas that refuse leave routing, so an honest request stays far below.
const maxPasses = 64

// failedAttempt gives up the replica that did not answer. It returns a refusal
// when the request must not be tried on another one.
func (st *stream) failedAttempt() *Refusal {
	passes := st.flight.pass()
	g := st.flight.take()
	if g == nil {
		return nil // the router was restarted in between
	}
	// Without the header no attempt was made, so no engine died.
	failed, err := envoy.ParseFailed(st.head.failed)
	refused := err != nil || failed.Sent == 0
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
