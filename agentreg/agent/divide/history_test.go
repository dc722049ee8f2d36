// SPDX-License-Identifier: Apache-2.0

package divide

import (
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// histories is the number of random histories; HOLDGATE_HISTORIES is another one.
const histories = 10_000

// Whatever happens to routers and messages, what routers keep and what may still run of lost
// ones never exceeds the slots, nor do the requests in the engine. When things settle, each
// router where requests wait has a slot while there are that many, and no slot is unused.
func TestNoHistoryOversubscribesTheEngine(t *testing.T) {
	t.Parallel()
	n := uint64(histories)
	if text := os.Getenv("HOLDGATE_HISTORIES"); text != "" {
		var err error
		n, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	var next, shrunk, scarce atomic.Uint64
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for seed := next.Add(1); seed <= n && !t.Failed(); seed = next.Add(1) {
				s := newSite(seed)
				if fault := s.run(&shrunk, &scarce); fault != "" {
					again := newSite(seed)
					again.logs = true
					again.run(&shrunk, &scarce)
					t.Errorf("history %d, %d slots: %s\n%s", seed, s.slots, fault, strings.Join(again.log, "\n"))
				}
			}
		})
	}
	workers.Wait()
	require.Greater(t, shrunk.Load(), n/20, "the engine's number is of use")
	require.Greater(t, scarce.Load(), n/200, "there are fewer slots than routers")
}

// run plays a history, and returns what is wrong in it.
func (s *site) run(shrunk, scarce *atomic.Uint64) string {
	for range 1 + s.rnd.IntN(4) {
		s.start()
	}
	for range 20 + s.rnd.IntN(80) {
		s.step()
		if fault := s.fault(); fault != "" {
			return fault
		}
	}
	if s.rnd.IntN(2) == 0 {
		if fault := s.outlive(shrunk); fault != "" {
			return fault
		}
	}
	return s.settle(scarce)
}

// outlive lets a router die whose requests run on, while the requests of the others come and go
// and the agent looks at the engine. It returns what is wrong then.
func (s *site) outlive(shrunk *atomic.Uint64) string {
	victim := s.routers[s.rnd.IntN(len(s.routers))]
	if victim.dead {
		return ""
	}
	s.kill(victim)
	for range 60 {
		for _, p := range s.routers {
			if !p.dead && s.rnd.IntN(2) == 0 {
				s.arrive(p)
			}
		}
		for _, q := range slices.Clone(s.running) {
			if !q.peer.dead && s.rnd.IntN(2) == 0 || s.rnd.IntN(30) == 0 {
				s.finish(q)
			}
		}
		for range s.rnd.IntN(20) {
			s.deliver()
		}
		s.pass(time.Duration(s.rnd.IntN(50)) * time.Millisecond)
		if s.rnd.IntN(2) == 0 {
			before := s.ledger.Frozen()
			s.tick()
			if s.ledger.Frozen() < before {
				shrunk.Add(1)
			}
		}
		if fault := s.fault(); fault != "" {
			return "outliving: " + fault
		}
	}
	return ""
}

// step is one random event.
func (s *site) step() {
	p := s.routers[s.rnd.IntN(len(s.routers))]
	switch n := s.rnd.IntN(100); {
	case n < 20:
		if !p.dead {
			s.arrive(p)
		}
	case n < 35:
		if len(s.running) > 0 {
			s.finish(s.running[s.rnd.IntN(len(s.running))])
		}
	case n < 45:
		s.pass(time.Duration(s.rnd.IntN(100)) * time.Millisecond)
	case n < 55:
		s.tick()
	case n < 58:
		s.heartbeat()
	case n < 59:
		s.ledger.NextTurn()
		s.ledger.Divide()
		s.notify()
	case n < 64:
		s.upset(p)
	default:
		s.deliver()
	}
}

// deliver handles a message of a random stream.
func (s *site) deliver() {
	if len(s.streams) == 0 {
		return
	}
	st := s.streams[s.rnd.IntN(len(s.streams))]
	if s.rnd.IntN(2) == 0 {
		s.receive(st)
	} else {
		s.handle(st)
	}
}

// upset makes a router come, die, restart, or lose its stream.
func (s *site) upset(p *peer) {
	switch s.rnd.IntN(6) {
	case 0:
		if len(s.routers) < 8 {
			s.start()
		}
	case 1:
		if !p.dead {
			s.kill(p)
			s.start()
		}
	case 2:
		s.hangUp(p, s.rnd.IntN(2) == 0)
	case 3:
		if !p.dead {
			s.connect(p)
		}
	case 4:
		if p.stream != nil && !p.stream.lost {
			s.cut(p.stream)
		}
	case 5:
		for _, st := range s.streams {
			if st.lost && !st.over {
				s.giveUp(st)
				return
			}
		}
	}
}

// settle lets requests end, lost streams be noticed and messages arrive, with one request that
// runs and many that wait at some routers. It returns what is wrong then.
func (s *site) settle(scarce *atomic.Uint64) string {
	for _, st := range slices.Clone(s.streams) {
		if st.lost && !st.over {
			s.giveUp(st)
		}
	}
	for _, p := range s.routers {
		if !p.dead {
			p.waiting = s.rnd.IntN(3) * s.rnd.IntN(2) * 100
			if p.stream == nil || p.stream.lost {
				s.connect(p)
			}
		}
	}
	for range 200 {
		for _, q := range slices.Clone(s.running) {
			if q.peer.dead || s.rnd.IntN(8) == 0 {
				s.finish(q)
			}
		}
		s.tick()
		for _, st := range slices.Clone(s.streams) {
			for len(st.down)+len(st.up) > 0 {
				before := len(st.down) + len(st.up)
				s.receive(st)
				s.handle(st)
				if len(st.down)+len(st.up) == before {
					break
				}
			}
		}
		for _, p := range s.routers {
			p.waiting = min(p.waiting*2, 100) // as many as before come
		}
		if fault := s.fault(); fault != "" {
			return "settling: " + fault
		}
		if s.unsettled() == "" {
			break
		}
	}
	for _, p := range s.routers {
		if p.waiting > 0 && p.share == 0 {
			scarce.Add(1)
		}
	}
	return s.unsettled()
}

// unsettled returns what is wrong when nothing has happened for a long time.
func (s *site) unsettled() string {
	waiting, shares, alive := 0, 0, 0
	for _, p := range s.routers {
		if p.dead {
			continue
		}
		alive++
		shares += p.share
		waiting += min(p.waiting, 1)
	}
	for _, p := range s.routers {
		switch {
		case p.dead:
		case p.stream == nil:
			return p.name + " is not connected"
		case p.waiting > 0 && p.share == 0 && waiting <= s.slots:
			return p.name + " waits without a slot"
		case p.waiting > 0 && p.taken < p.share:
			return p.name + " does not use its share"
		}
	}
	if alive > 0 && shares != s.slots {
		return strconv.Itoa(shares) + " slots are divided"
	}
	return ""
}
