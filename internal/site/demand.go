// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/shared"
)

const (
	// leftLife is how long a router tells the others of a request that left it: through three
	// beats, so that a message that is lost does no harm.
	leftLife = 3 * shared.Beat
	// leftKept is of how many of them it tells, of all models.
	leftKept = 10_000
)

// DemandOptions are the options of a Demand. Both are required.
type DemandOptions struct {
	// Machine returns the machine with the waiters of this router.
	Machine func() *holdstate.Machine
	// OnChange is called when the demand of another router for a model may have changed. It must
	// not block.
	OnChange func(model string)
}

// Demand is the demand of all routers of the site.
type Demand struct {
	o      DemandOptions
	levels *shared.Levels
	places places

	mu   sync.Mutex
	left map[string][]leaving // by model, the first to end in front
	n    int                  // of left, of all models
}

// leaving is a request that left this router.
type leaving struct {
	holdstate.Standing

	until time.Time
}

// NewDemand returns the demand. It must be called before the client runs.
func NewDemand(c *shared.Client, o DemandOptions) *Demand {
	d := &Demand{o: o, left: map[string][]leaving{}}
	d.levels = c.NewLevels("demand", shared.LevelOptions{Own: d.own, All: d.all, OnChange: d.changed, OnGone: d.gone})
	c.OnBeat(func(context.Context) { d.places.expire() })
	return d
}

// Need is what the routers of the site say of a model together.
type Need struct {
	Demand   int // distinct requests that wait for it
	Released int // waiters for which a replica came, and that have no slot yet
	Wanted   bool
	// Oldest is when the request arrived that waits the longest; zero: none waits.
	Oldest time.Time
}

// Need returns the need of the site for a model. A request that waits on several routers counts
// once.
func (d *Demand) Need(model string) Need {
	own := d.o.Machine().Level(model)
	n := Need{Released: own.Released, Wanted: !own.Empty()}
	all := union{seen: make(map[uint64]struct{}, len(own.Waiting))}
	for _, s := range own.Waiting {
		all.add(s)
	}
	for _, l := range d.others(model) {
		n.Released += l.released
		n.Wanted = n.Wanted || l.wanted()
		for i := range l.waiting.len() {
			all.add(l.waiting.at(i))
		}
	}
	n.Demand = len(all.seen)
	if n.Demand > 0 {
		n.Oldest = time.Unix(0, int64(min(all.first, 1<<62)))
	}
	return n
}

// union is the requests of several routers.
type union struct {
	seen  map[uint64]struct{} // by identity
	first uint64              // the earliest place
}

func (u *union) add(s holdstate.Standing) {
	if len(u.seen) == 0 || s.Place < u.first {
		u.first = s.Place
	}
	u.seen[s.Identity] = struct{}{}
}

// Demand returns the number of distinct requests that wait for the model on all routers.
func (d *Demand) Demand(model string) int { return d.Need(model).Demand }

// Wanted reports whether the model is wanted on any router.
func (d *Demand) Wanted(model string) bool {
	if d.o.Machine().Wanted(model) {
		return true
	}
	for _, l := range d.others(model) {
		if l.wanted() {
			return true
		}
	}
	return false
}

// others returns the levels of the other routers.
func (d *Demand) others(model string) (all []level) {
	d.levels.Each(model, func(value string) {
		if l, ok := decode(value); ok {
			all = append(all, l)
		}
	})
	return all
}

// PlaceOf returns the place that another router gave to a request, 0 if there is none, as
// holdstate.Options.PlaceOf does. A place is taken over once.
func (d *Demand) PlaceOf(model string, identity uint64) uint64 {
	elsewhere := uint64(0)
	// A router that died has its places until gone remembers them.
	d.levels.EachLast(model, func(value string) {
		l, ok := decode(value)
		if !ok {
			return
		}
		for _, place := range []uint64{l.waiting.place(identity), l.left.place(identity)} {
			if place != 0 && (elsewhere == 0 || place < elsewhere) {
				elsewhere = place
			}
		}
	})
	return d.places.take(model, identity, elsewhere)
}

// Changed has the level of a model written soon, as OnLevel of holdstate.Options asks. It does not
// block.
func (d *Demand) Changed(model string) { d.levels.Changed(model) }

// Left makes the place of a request known to the other routers, as OnLeft of holdstate.Options
// asks: its client is expected there.
func (d *Demand) Left(model string, s holdstate.Standing) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.n < leftKept {
		model = strings.Clone(model) // it may be a part of a request's body
		d.left[model] = append(d.left[model], leaving{s, time.Now().Add(leftLife)})
		d.n++
	}
}

// own returns the level of this router for a model.
func (d *Demand) own(model string) string {
	return encode(d.o.Machine().Level(model), d.leftOf(model))
}

// all returns all levels of this router.
func (d *Demand) all() map[string]string {
	names := d.o.Machine().Wanting()
	d.mu.Lock()
	for name := range d.left {
		names = append(names, name)
	}
	d.mu.Unlock()
	levels := make(map[string]string, len(names))
	for _, name := range names {
		if text := d.own(name); text != "" {
			levels[name] = text
		}
	}
	return levels
}

// leftOf returns the requests for a model that left this router less than leftLife ago.
func (d *Demand) leftOf(model string) []holdstate.Standing {
	d.mu.Lock()
	defer d.mu.Unlock()
	all, now := d.left[model], time.Now()
	over := 0
	for over < len(all) && !now.Before(all[over].until) {
		over++
	}
	d.n -= over
	if all = all[over:]; len(all) == 0 {
		delete(d.left, model)
		return nil
	}
	d.left[model] = all
	standings := make([]holdstate.Standing, 0, len(all))
	for _, l := range all {
		standings = append(standings, l.Standing)
	}
	return standings
}

// changed is called when the level of another router for a model may have changed.
func (d *Demand) changed(model string) {
	for _, l := range d.others(model) {
		d.remember(model, l.left)
	}
	d.o.OnChange(model)
}

// gone is called with the levels of a router that left or died.
func (d *Demand) gone(levels map[string]string) {
	for model, text := range levels {
		if l, ok := decode(text); ok {
			d.remember(model, l.waiting)
			d.remember(model, l.left)
		}
	}
}

func (d *Demand) remember(model string, all standings) {
	for i := range all.len() {
		d.places.add(model, all.at(i))
	}
}
