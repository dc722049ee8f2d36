// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"cmp"
	"strings"
	"time"
	"unicode"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/agentreg/protocol"
	"github.com/holdgate/holdgate/internal/mask"
)

// maxReason is how many bytes of an agent's text about a failed wake are kept.
const maxReason = 512

// onStatus handles a Status.
func (a *registration) onStatus(s *pb.Status) {
	a.registry.update(func() {
		if a.left {
			return
		}
		before := a.state
		a.heard = true
		a.noteLoad(s)
		if handled, counts := a.messages.acknowledge(s.GetHandled()); counts {
			a.applyStatus(s, handled)
		}
		// Most heartbeats change nothing.
		if a.state != before {
			a.reevaluate()
		}
	})
}

// noteLoad records the numbers of a Status, and makes the callbacks due that follow.
func (a *registration) noteLoad(s *pb.Status) {
	due, rep := &a.registry.due, a.replica
	if rep.gate.update(s) {
		due.changed = append(due.changed, rep.targets...)
	}
	rep.usage.divided.Store(s.GetRouters() > 1 || rep.gate.load().share() < rep.gate.slots)
	if s.GetOffer() > 0 { // after the share
		a.session.offer = s.GetOffer()
		a.session.tell()
	}
	a.heartbeat.at, a.heartbeat.status = time.Now(), s
	f, twice := a.heartbeat.checkFewer(rep.gate.inFlight()+rep.takenEarlier(), protocol.Heartbeat(a.registry.opts.Liveness))
	if twice {
		f.agent = rep.info
		due.fewer = append(due.fewer, f)
	}
}

// checkFewer compares the last Status with the number of slots taken. If the engine had
// fewer requests at two heartbeats in a row, twice is true and before must be reported.
func (h *heartbeat) checkFewer(taken int64, interval time.Duration) (before fewer, twice bool) {
	before = h.fewer
	h.fewer = fewer{}
	if h.status.InFlight == nil || int64(h.status.GetInFlight()) >= taken {
		return before, false
	}
	h.fewer = fewer{most: int(h.status.GetInFlight()), first: h.at}
	if before.first.IsZero() {
		return before, false
	}
	most := max(before.most, h.fewer.most)
	if h.at.Sub(before.first) < interval*3/4 { // a Status between two heartbeats
		h.fewer = fewer{most: most, first: before.first}
		return before, false
	}
	before.most = most
	return before, true
}

// applyStatus sets the agent's state to the reported one.
func (a *registration) applyStatus(s *pb.Status, handled uint64) {
	before, healthyBefore := a.reported, a.healthy
	if s.GetState() != pb.State_STATE_UNSPECIFIED {
		a.reported = s.GetState()
	}
	a.healthy = s.GetHealthy()
	serving := a.reported == pb.State_STATE_SERVING
	if serving && a.healthy {
		a.noteServing(handled, time.Now())
	}
	if serving && before == a.reported && a.healthy != healthyBefore && !a.toldToSleep {
		a.log.Info().Bool("healthy", a.healthy).Msg("agent health changed")
	}
	if a.reported == pb.State_STATE_ASLEEP {
		a.noteAsleep(before)
	}
}

// noteAsleep records that the engine does not run; before is its previous state.
func (a *registration) noteAsleep(before pb.State) {
	short := !a.upAt.IsZero() && time.Since(a.upAt) < stableTime
	a.upAt = time.Time{}
	a.updateRouting()
	if before == pb.State_STATE_SERVING {
		a.logAsleepAgain()
		if short && a.group != nil && !a.toldToSleep {
			a.endedSoon()
		}
	}
	if a.attempt.open {
		a.wakeFailed("the engine went back to sleep", "", 0)
	}
}

// logAsleepAgain logs that an engine that served has ended.
func (a *registration) logAsleepAgain() {
	cause := "the engine ended by itself"
	switch {
	case a.toldToSleep:
		cause = a.sleepCause
	case !a.hello.canWake:
		cause = "it is not checked any more: no request needs it, or it does not answer"
	}
	for _, name := range a.hello.info.Models {
		a.log.Info().Str("model", name).Str("cause", cause).Msg("asleep again")
	}
}

// onWakeResult handles a WakeResult. A success changes nothing: the Status that follows it
// does.
func (a *registration) onWakeResult(w *pb.WakeResult) {
	a.registry.update(func() {
		if a.left {
			return
		}
		a.heartbeat.at = time.Now()
		if !w.GetOk() && a.waking() {
			notBefore := min(max(w.GetRetryAfter().AsDuration(), 0), maxGroupCooldown)
			a.wakeFailed(cmp.Or(cleanText(w.GetReason()), "the agent gave no reason"), cleanText(w.GetDetail()), notBefore)
		}
		a.reevaluate()
	})
}

// cleanText removes secrets and unprintable characters from an agent's text and limits its
// length, so that it can be logged and shown in an error.
func cleanText(s string) string {
	s = strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) || c == unicode.ReplacementChar {
			return ' '
		}
		return c
	}, mask.Secrets(s))
	if len(s) > maxReason {
		s = strings.ToValidUTF8(s[:maxReason], "") + "…"
	}
	return strings.TrimSpace(s)
}
