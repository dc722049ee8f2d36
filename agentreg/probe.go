// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"time"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
)

// maxProbeDelay is the longest delay of the StatusRequest to an agent that keeps refusing
// requests.
const maxProbeDelay = 2 * time.Second

// probe is the check of an engine that refused a request. The engine is out of routing
// until a Status reports it healthy that acknowledges the StatusRequest or a later message.
type probe struct {
	failed bool      // a request was refused, and no Status has come since
	from   uint64    // a Status that acknowledges this message or a later one ends the probe
	inARow int       // how often requests were refused right after the engine was routed
	at     time.Time // when to send the StatusRequest; zero: it was sent
}

// begin records a refused request. An engine that is healthy and nevertheless refuses
// requests is probed after increasing delays.
func (p *probe) begin(now, routedAt time.Time, nextMessage uint64) {
	if now.Sub(routedAt) > maxProbeDelay {
		p.inARow = 0
	}
	p.failed, p.from, p.at = true, nextMessage, now.Add(probeDelay(p.inARow))
	p.inARow++
}

func probeDelay(inARow int) time.Duration {
	if inARow == 0 {
		return 0
	}
	return min(10*time.Millisecond<<min(inARow, 10), maxProbeDelay)
}

// due reports whether the caller must send a StatusRequest now. It does so once.
func (p *probe) due(now time.Time) bool {
	if p.at.IsZero() || now.Before(p.at) {
		return false
	}
	p.at = time.Time{}
	return true
}

// answered records a Status of a healthy engine that acknowledges messages up to handled.
func (p *probe) answered(handled uint64) {
	if p.failed && handled >= p.from {
		p.failed, p.at = false, time.Time{}
	}
}

// refusedRequest takes the agent out of routing because it refused a request.
func (a *registration) refusedRequest(reason string) {
	if a.probe.failed {
		return
	}
	a.log.Info().Str("reason", reason).Msg("agent refused a request")
	now := time.Now()
	a.probe.begin(now, a.routedAt, a.messages.last+1)
	a.sendProbe(now)
	a.reevaluate()
}

// sendProbe sends a StatusRequest if one is due.
func (a *registration) sendProbe(now time.Time) {
	if a.probe.due(now) {
		a.session.send(&pb.RouterMessage{Message: &pb.RouterMessage_StatusRequest{StatusRequest: &pb.StatusRequest{
			Seq: a.messages.next(),
		}}})
	}
}
