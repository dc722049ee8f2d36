// SPDX-License-Identifier: Apache-2.0

package divide

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	// onItsWay is how long a request may be on its way to the engine, and the log entry of one
	// that has ended to its router, at most.
	onItsWay = 200 * time.Millisecond
	// unaware is how long a router may not know that its stream was lost.
	unaware = 15 * time.Second
)

// site is an agent's ledger, its engine and its routers, with messages that take any time.
type site struct {
	rnd     *rand.Rand
	slots   int
	ledger  *Ledger
	now     time.Time
	routers []*peer
	streams []*stream
	running []*request
	ask     bool // the next tick asks, otherwise it looks
	logs    bool
	log     []string
}

// peer is the process of a router.
type peer struct {
	name     string
	dead     bool
	stream   *stream // nil: not connected
	share    int
	offer    uint64
	taken    int
	waiting  int
	released uint64
}

// request is a request that was sent to the engine.
type request struct {
	peer    *peer
	arrives time.Time
	ends    time.Time // when its router knows of its end; zero: it runs
}

// stream is a stream between the agent and a peer.
type stream struct {
	peer     *peer
	router   *Router
	down     []message // to the peer
	up       []message // to the agent
	lost     bool      // what is sent does not arrive any more
	over     bool      // the agent knows its end
	deadline time.Time // of a lost stream that the agent has given up: the peer knows by then
}

// message is a Hello or a Status down, and a Welcome, a Usage or the end of the stream up.
type message struct {
	hello, welcome, end bool
	number              uint64
	share               int
	usage               Usage
}

func newSite(seed uint64) *site {
	rnd := rand.New(rand.NewPCG(seed, 0))
	slots := 1 + rnd.IntN(6)
	s := &site{rnd: rnd, slots: slots, ledger: New(slots), now: time.Unix(0, 0)}
	s.ledger.lastTwo = s.now.Add(time.Hour) // also the only router's slots are frozen
	return s
}

func (s *site) note(format string, args ...any) {
	if !s.logs {
		return
	}
	s.log = append(s.log, fmt.Sprintf(format, args...))
}

// connect opens a stream to a peer; the agent then has two if there is one already.
func (s *site) connect(p *peer) {
	st := &stream{peer: p, router: s.ledger.Join()}
	number, share := st.router.Offer()
	st.down = append(st.down, message{hello: true, number: number, share: share})
	s.streams = append(s.streams, st)
	s.note("connect %s: %d", p.name, share)
}

// start starts a router.
func (s *site) start() {
	p := &peer{name: fmt.Sprint("r", len(s.routers))}
	s.routers = append(s.routers, p)
	s.connect(p)
}

// kill ends the process of a router. What Envoy carries goes on.
func (s *site) kill(p *peer) {
	s.note("kill %s with %d", p.name, p.taken)
	p.dead = true
	p.disconnect()
	for _, st := range s.streams {
		if st.peer == p {
			st.down = nil
			st.up = append(st.up[:s.rnd.IntN(len(st.up)+1)], message{end: true})
		}
	}
}

// hangUp makes a router end its stream. With goodbye it says first what it keeps.
func (s *site) hangUp(p *peer, goodbye bool) {
	st := p.stream
	if st == nil {
		return
	}
	s.note("hang up %s: %v", p.name, goodbye)
	p.disconnect()
	if goodbye {
		st.up = append(st.up, message{usage: p.usage()})
	}
	st.up = append(st.up, message{end: true})
	st.down = nil
}

// cut makes a stream lose what is sent, and what was sent and has not arrived.
func (s *site) cut(st *stream) {
	s.note("cut %s", st.peer.name)
	st.lost, st.down, st.up = true, nil, nil
}

// giveUp makes the agent end a lost stream.
func (s *site) giveUp(st *stream) {
	s.note("give up %s", st.peer.name)
	st.deadline = s.now.Add(unaware)
	s.leave(st, st.deadline)
}

func (s *site) leave(st *stream, quiet time.Time) {
	st.over = true
	s.ledger.Leave(st.router, End{Now: s.now, Quiet: quiet})
	if st.deadline.IsZero() || st.peer.stream != st {
		s.streams = slices.DeleteFunc(s.streams, func(x *stream) bool { return x == st })
	}
	s.ledger.Divide()
	s.notify()
}

// notify sends offers to the routers whose share has changed.
func (s *site) notify() {
	for _, st := range s.streams {
		if !st.over && st.router.Due() {
			s.status(st)
		}
	}
}

func (s *site) status(st *stream) {
	number, share := st.router.Offer()
	if !st.lost && !st.over {
		st.down = append(st.down, message{number: number, share: share})
	}
}

// disconnect makes the router send no more requests.
func (p *peer) disconnect() { p.stream, p.share = nil, 0 }

func (p *peer) usage() Usage {
	return Usage{Offer: p.offer, Kept: max(p.share, p.taken), Taken: p.taken, Waiting: p.waiting, Released: p.released}
}

// tell sends a Usage.
func (s *site) tell(p *peer) {
	if p.stream != nil && !p.stream.lost {
		p.stream.up = append(p.stream.up, message{usage: p.usage()})
	}
}

// receive makes a router handle the next message of a stream.
func (s *site) receive(st *stream) {
	if len(st.down) == 0 || st.peer.dead {
		return
	}
	m, p := st.down[0], st.peer
	st.down = st.down[1:]
	if m.hello {
		if p.stream != nil && p.stream != st {
			s.hangUp(p, false)
		}
		p.stream = st
		st.up = append(st.up, message{welcome: true})
	}
	if p.stream != st {
		return // it was replaced by another one
	}
	p.offer, p.share = m.number, m.share
	s.serve(p)
	s.tell(p)
}

// handle makes the agent handle the next message of a stream.
func (s *site) handle(st *stream) {
	if len(st.up) == 0 || st.over {
		return
	}
	m := st.up[0]
	st.up = st.up[1:]
	switch {
	case m.end:
		s.leave(st, s.now)
		return
	case m.welcome:
		s.ledger.Welcome(st.router, st.peer.name, false, s.now)
	default:
		s.ledger.Use(st.router, m.usage)
	}
	s.ledger.Divide()
	s.notify()
	s.note("from %s: %s, frozen %v", st.peer.name, m, s.ledger.frozen)
}

// arrive is a request that comes to a router.
func (s *site) arrive(p *peer) {
	p.waiting++
	s.serve(p)
	if p.waiting > 0 && s.rnd.IntN(4) > 0 { // otherwise it is told later
		s.tell(p)
	}
}

// serve sends requests that wait to the engine.
func (s *site) serve(p *peer) {
	for p.stream != nil && p.waiting > 0 && p.taken < p.share {
		p.waiting--
		p.taken++
		s.running = append(s.running, &request{peer: p, arrives: s.now.Add(time.Duration(s.rnd.Int64N(int64(onItsWay))))})
	}
}

// finish ends a request in the engine.
func (s *site) finish(q *request) {
	if q.ends.IsZero() && !q.arrives.After(s.now) {
		q.ends = s.now.Add(time.Duration(s.rnd.Int64N(int64(onItsWay))))
	}
}

// pass lets time pass.
func (s *site) pass(d time.Duration) {
	s.now = s.now.Add(d)
	for _, q := range slices.Clone(s.running) {
		if q.ends.IsZero() || q.ends.After(s.now) {
			continue
		}
		s.running = slices.DeleteFunc(s.running, func(x *request) bool { return x == q })
		above := q.peer.taken > q.peer.share
		q.peer.taken--
		q.peer.released++
		s.serve(q.peer)
		if above && !q.peer.dead {
			s.tell(q.peer)
		}
	}
	for _, st := range slices.Clone(s.streams) {
		if !st.deadline.IsZero() && !st.deadline.After(s.now) {
			if st.peer.stream == st {
				st.peer.disconnect()
			}
			s.streams = slices.DeleteFunc(s.streams, func(x *stream) bool { return x == st })
		}
	}
}

// tick is half of an interval of the agent's looks.
func (s *site) tick() {
	s.pass(LookEvery / 2)
	s.ask = !s.ask
	if !s.ask {
		n := s.inEngine()
		s.ledger.Look(s.now, n)
		s.note("look: %d, frozen %d", n, s.ledger.Frozen())
		s.ledger.Divide()
		s.notify()
		return
	}
	s.ledger.Ask()
	s.heartbeat()
}

// heartbeat sends an offer to every router.
func (s *site) heartbeat() {
	for _, st := range s.streams {
		if !st.over {
			s.status(st)
		}
	}
}

// inEngine returns the number of requests in the engine.
func (s *site) inEngine() (n int) {
	for _, q := range s.running {
		if !q.arrives.After(s.now) && q.ends.IsZero() {
			n++
		}
	}
	return n
}

// fault returns what is wrong, empty if nothing is.
func (s *site) fault() string {
	possible, sent := 0, 0
	for _, p := range s.routers {
		if p.stream != nil {
			possible += max(p.share-p.taken, 0)
		}
	}
	for _, q := range s.running {
		if q.ends.IsZero() {
			sent++
		}
	}
	if possible+sent > s.slots {
		return fmt.Sprintf("%d requests were sent, %d more may be, for %d slots", sent, possible, s.slots)
	}
	return ""
}

func (m message) String() string {
	switch {
	case m.end:
		return "end"
	case m.welcome:
		return "welcome"
	}
	return fmt.Sprintf("%+v", m.usage)
}
