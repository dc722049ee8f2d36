// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"strings"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/refusal"
)

// failure is why a replica gave no answer.
type failure string

const (
	failRefused  failure = "refused the connection"
	failDied     failure = "ended the connection before its answer" // it had taken the request
	failNotTaken failure = "answered that it did not take the request"
)

// maxPasses limits how often one request may pass through the rehold lane. Replicas that
// refuse requests leave routing, so a real request stays far below it.
const maxPasses = 64

// attemptFailed gives up the replica of the failed attempt after which Envoy sent the
// request to the rehold lane; failed is Envoy's description of that attempt. It returns a
// refusal when the request must not be sent to another replica.
func (fl *flight) attemptFailed(failed, model string) *refusal.Refusal {
	passes := fl.countPass()
	g := fl.take()
	if g == nil {
		return nil // the router was restarted in between
	}
	// Without a description Envoy made no attempt, so no engine died.
	attempt, err := envoy.ParseFailed(failed)
	how := failDied
	switch {
	case err != nil || attempt.Sent == 0:
		how = failRefused
	case attempt.Received > 0 && fl.call.Engine(model, g).NotTaken != "":
		how = failNotTaken
	case attempt.Received > 0:
		g.Release() // the replica is up, and another one would answer no better
		return refusal.InvalidAnswer(model)
	}
	why := fl.giveUp(g, how, model)
	if passes > maxPasses {
		return refusal.BackendError(model)
	}
	return why
}

// giveUp reports that a replica gave no answer, and releases its slot. It returns a refusal
// when the request must not be sent to another replica.
func (fl *flight) giveUp(g holdstate.Grant, how failure, model string) *refusal.Refusal {
	g.Failed(string(how), how != failRefused)
	g.Release()
	if how == failDied && fl.died(g.Replica().Address) {
		return refusal.BackendError(model)
	}
	return nil
}

// died counts the death of an engine that had taken the request. over is true when the
// request must not be tried again: two engines died under it, or one three times.
func (fl *flight) died(address string) (over bool) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	if fl.deaths == nil {
		fl.deaths = map[string]int{}
	}
	fl.deaths[address]++
	return len(fl.deaths) >= 2 || fl.deaths[address] >= 3
}

// countPass counts a pass through the rehold lane.
func (fl *flight) countPass() int {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	fl.passes++
	return fl.passes
}

// cameBack refuses a request that a replica sent to this router, where the same request is
// in flight, and reports that replica. via lists Envoy's names of the requests that it is a
// copy of.
func (s *Server) cameBack(via string) *refusal.Refusal {
	for name := range strings.SplitSeq(via, ",") {
		g, model, found := s.flights.sentTo(strings.TrimSpace(name))
		if g != nil {
			g.CameBack()
		}
		if found {
			return refusal.LoopDetected(model)
		}
	}
	return nil
}
