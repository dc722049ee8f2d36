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

// maxReason bounds what an agent may say about a failed wake.
const maxReason = 512

// statusFrom takes in a Status.
func (r *Registry) statusFrom(rec *registration, s *pb.Status) {
	r.update(func() {
		if rec.released {
			return
		}
		before := rec.levels()
		rec.lastSeen = time.Now()
		rec.status = s
		handled := min(s.GetHandled(), rec.seq) // nobody has heard what was not said
		rec.handled = max(rec.handled, handled)
		r.countOthers(rec, s)
		r.countOwn(rec, s)
		// What was sent before the agent took in the last Wake or Sleep says
		// nothing about what it does after it.
		if handled >= rec.command {
			r.apply(rec, s, handled)
		}
		// Heartbeats come all the time, and most change nothing.
		if rec.levels() != before {
			r.settle(rec)
		}
	})
}

// apply changes rec's state to what s says.
func (r *Registry) apply(rec *registration, s *pb.Status, handled uint64) {
	before, healthyBefore := rec.reported, rec.healthy
	if s.GetState() != pb.State_STATE_UNSPECIFIED {
		rec.reported = s.GetState()
	}
	rec.healthy = s.GetHealthy()
	serving := rec.reported == pb.State_STATE_SERVING
	if serving && rec.healthy {
		r.serves(rec, handled)
	}
	if serving && before == rec.reported && rec.healthy != healthyBefore && !rec.slept {
		r.log.Info().Str("agent", rec.hello.info.ID).Bool("healthy", rec.healthy).Msg("agent health changed")
	}
	if rec.reported == pb.State_STATE_ASLEEP {
		r.sleeps(rec, before)
	}
}

// serves notes that rec's engine is up and healthy.
func (r *Registry) serves(rec *registration, handled uint64) {
	if rec.wakeSent || rec.upAt.IsZero() {
		rec.upAt = time.Now()
	}
	rec.wakeSent, rec.wakeFailed = false, false
	if time.Since(rec.upAt) >= settled {
		rec.failures = 0
	}
	if rec.failed && handled >= rec.failSeq {
		rec.failed = false
		rec.probeAt = time.Time{}
	}
}

// sleeps notes that rec's engine, which was in another state or this one before, does
// not run.
func (r *Registry) sleeps(rec *registration, before pb.State) {
	short := !rec.upAt.IsZero() && time.Since(rec.upAt) < settled
	rec.upAt = time.Time{}
	r.route(rec)
	if before == pb.State_STATE_SERVING {
		r.asleepAgain(rec)
		if short && rec.group != nil && !rec.slept {
			r.endedSoon(rec)
		}
	}
	if rec.wakeSent {
		r.wakeFailed(rec, "the engine went back to sleep", "", 0)
	}
}

// asleepAgain logs that an engine which served has ended.
func (r *Registry) asleepAgain(rec *registration) {
	cause := "the engine ended by itself"
	switch {
	case rec.slept:
		cause = rec.cause
	case !rec.hello.canWake:
		cause = "it is not looked at: nobody needs it, or it does not answer"
	}
	for _, name := range rec.hello.info.Models {
		r.log.Info().Str("model", name).Str("agent", rec.hello.info.ID).Str("cause", cause).Msg("asleep again")
	}
}

// countOthers notes how many of the agent's slots are for this router, how many other
// routers use, and how full the engine's cache is. The engine's number is some moments old, so it counts only where there are
// other routers.
func (r *Registry) countOthers(rec *registration, s *pb.Status) {
	g := &rec.replica.gate
	var others int64
	if s.InFlight != nil && s.GetRouters() > 1 {
		others = max(int64(s.GetInFlight())-g.inFlight(), 0)
	}
	g.cache.Store(int64(min(max(s.GetKvUse(), 0), 1) * float64(full)))
	othersBefore, shareBefore := g.others.Swap(others), g.divide(s.Slots)
	if others < othersBefore || shareBefore < g.share.Load() {
		r.fx.changed = append(r.fx.changed, rec.replica.targets...)
	}
}

// countOwn notes an engine that has fewer requests than slots are taken, at two
// heartbeats in a row. Statuses between them are not counted as another one.
func (r *Registry) countOwn(rec *registration, s *pb.Status) {
	now := rec.lastSeen
	before := rec.fewer
	if s.InFlight == nil || int64(s.GetInFlight()) >= rec.replica.gate.inFlight()+rec.replica.earlier() {
		rec.fewer = fewer{}
		return
	}
	rec.fewer = fewer{agent: rec.hello.info, most: int(s.GetInFlight()), first: now}
	switch {
	case before.first.IsZero():
	case now.Sub(before.first) < protocol.Heartbeat(r.opts.Liveness)*3/4:
		rec.fewer.first, rec.fewer.most = before.first, max(before.most, rec.fewer.most)
	default:
		before.most = max(before.most, rec.fewer.most)
		r.fx.fewer = append(r.fx.fewer, before)
	}
}

// resultFrom takes in a WakeResult. A success needs nothing: the Status that
// follows it counts.
func (r *Registry) resultFrom(rec *registration, w *pb.WakeResult) {
	r.update(func() {
		if rec.released {
			return
		}
		rec.lastSeen = time.Now()
		if !w.GetOk() && rec.waking() {
			notBefore := min(max(w.GetRetryAfter().AsDuration(), 0), maxGroupCooldown)
			r.wakeFailed(rec, cmp.Or(clean(w.GetReason()), "the agent gave no reason"), clean(w.GetDetail()), notBefore)
		}
		r.settle(rec)
	})
}

// clean makes an agent's words fit for a log line and an error message.
func clean(s string) string {
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
