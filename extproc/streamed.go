// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"sync"
	"time"
)

// streamed notes which Envoys take streamed answers, which keepalives need. Somebody else's may be
// older than 1.37, or another data plane: it ends the ext_proc stream at the head of such an answer,
// and its client gets 500. It resets the stream (1.36.4), while an Envoy whose client leaves closes
// it (1.40.0). Others may not, so an Envoy that seems not to take such answers is tried again
// later.
type streamed struct {
	mu  sync.Mutex
	all map[string]*streaming // by Envoy: see envoyOf
}

// ending is how the stream of an answer ended.
type ending uint8

const (
	byUs     ending = iota
	closed          // by Envoy, as when its client leaves
	wasReset        // by Envoy, as when it does not take the answer
)

// streaming is what is known of one Envoy.
type streaming struct {
	taken bool // an answer has outlived its head
	ended int  // answers in a row whose stream ended at their head
	until time.Time
}

const (
	// endedAtHead is how soon after the head of an answer an Envoy that does not take it ends the
	// stream. One on the same machine took 3 ms.
	endedAtHead = 250 * time.Millisecond
	// endedByEnvoy is how many answers in a row must end so at an Envoy that has taken some, or
	// that closed the streams: their clients may have left.
	endedByEnvoy = 5
	// firstSilence is how long holds are silent after the first such answer, and maxSilence after
	// many of them. Each time is ten times as long as the one before.
	firstSilence = time.Minute
	maxSilence   = 24 * time.Hour
	// maxEnvoys limits the memory: when there are more, all is forgotten.
	maxEnvoys = 1000
)

// refuses reports whether an Envoy does not take streamed answers at present.
func (s *streamed) refuses(envoy string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.all[envoy]
	return e != nil && time.Now().Before(e.until)
}

// ended notes the end of an answer, at a time after its head. news is true when the Envoy is found
// not to take such answers, for the first time.
func (s *streamed) ended(envoy string, after time.Duration, how ending) (news bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.all[envoy]
	if e == nil {
		if s.all == nil || len(s.all) >= maxEnvoys {
			s.all = map[string]*streaming{}
		}
		e = &streaming{}
		s.all[envoy] = e
	}
	switch {
	case after >= endedAtHead:
		*e = streaming{taken: true}
	case how == byUs, how == closed && e.taken:
	default:
		e.ended++
		return e.judge(how)
	}
	return false
}

// judge decides whether to be silent after an answer that ended at its head. The caller holds mu.
func (e *streaming) judge(how ending) (news bool) {
	needed := 1
	if e.taken || how == closed {
		needed = endedByEnvoy
	}
	n := e.ended - needed
	if n < 0 {
		return false
	}
	pause := silence(n)
	if how == closed {
		pause = firstSilence // clients can make it so
	}
	e.until = time.Now().Add(pause)
	return n == 0
}

// silence returns how long holds are silent after n more answers than needed.
func silence(n int) time.Duration {
	d := firstSilence
	for ; n > 0 && d < maxSilence; n-- {
		d *= 10
	}
	return min(d, maxSilence)
}

// noteStreamed notes how a streamed answer through a gateway ended.
func (p *pass) noteStreamed() {
	if p.streamedAt.IsZero() || !p.to.throughGateway() {
		return
	}
	if p.s.streamed.ended(p.flight.envoy, time.Since(p.streamedAt), p.ending()) {
		p.s.d.Log.Warn().Str("envoy", p.flight.envoy).
			Msg("this Envoy does not take streamed answers, which need Envoy 1.37 or newer: its held requests get no keepalives from now on")
	}
}

// ending returns how the stream of the pass, which has been watched, ended.
func (p *pass) ending() ending {
	if !p.clientLeft {
		return byUs
	}
	select {
	case <-p.gone:
		if p.closed {
			return closed
		}
	default: // a message could not be sent
	}
	return wasReset
}
