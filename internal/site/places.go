// SPDX-License-Identifier: Apache-2.0

package site

import (
	"container/list"
	"sync"
	"time"

	"github.com/holdgate/holdgate/holdstate"
)

const (
	// placesKept is how many places are remembered, of all models.
	placesKept = 10_000
	// placeLife is how long a place is remembered after its request left another router.
	placeLife = 10 * time.Minute
)

// places remembers where requests stood that no other router has any more, and which places were
// taken over here.
type places struct {
	mu    sync.Mutex
	of    map[request]*list.Element
	order list.List // of *remembered, the first to end in front
}

// request is a request for a model.
type request struct {
	model    string
	identity uint64
}

// remembered is the place of a request, 0 if it was taken over here.
type remembered struct {
	request

	place uint64
	until time.Time
}

// add remembers the place of a request, unless it was taken over here.
func (p *places) add(model string, s holdstate.Standing) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := request{model, s.Identity}
	if e := p.of[r]; e == nil || e.Value.(*remembered).place != 0 {
		p.set(r, s.Place)
	}
}

// take returns the place of a request, 0 if there is none, and remembers that it was taken over.
// elsewhere is the place that it has on a router now, 0: none. A place is taken over once, so
// that a client that uses its id for many requests does not get ahead with each.
func (p *places) take(model string, identity, elsewhere uint64) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := request{model, identity}
	place := elsewhere
	if e := p.of[r]; e != nil {
		m := e.Value.(*remembered)
		switch {
		case !time.Now().Before(m.until):
		case m.place == 0:
			return 0
		case place == 0 || m.place < place:
			place = m.place
		}
	}
	if place != 0 {
		p.set(r, 0)
	}
	return place
}

// set remembers a place for placeLife. The lock must be held.
func (p *places) set(r request, place uint64) {
	if p.of == nil {
		p.of = map[request]*list.Element{}
	}
	if e := p.of[r]; e != nil {
		p.order.Remove(e)
	} else if len(p.of) == placesKept {
		p.remove(p.order.Front())
	}
	p.of[r] = p.order.PushBack(&remembered{request: r, place: place, until: time.Now().Add(placeLife)})
}

// expire forgets the places whose time is over.
func (p *places) expire() {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	for e := p.order.Front(); e != nil && !now.Before(e.Value.(*remembered).until); e = p.order.Front() {
		p.remove(e)
	}
}

func (p *places) remove(e *list.Element) {
	delete(p.of, p.order.Remove(e).(*remembered).request)
}
