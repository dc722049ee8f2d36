// SPDX-License-Identifier: Apache-2.0

package site

import (
	"encoding/binary"
	"sync"
	"time"

	"github.com/holdgate/holdgate/internal/admission"
	"github.com/holdgate/holdgate/internal/shared"
)

// Gate makes the admission gate of this router count what the other routers have admitted.
// Each router writes its reservations by model as levels, so that no request waits for a call.
//
// Alone, and [shared.Life] after it last heard of the others, a router applies the limits to
// its own reservations.
type Gate struct {
	o      GateOptions
	levels *shared.Levels

	reading sync.Mutex // so that the gate gets the latest levels last
}

// GateOptions are the parts that a Gate connects. All are required.
type GateOptions struct {
	Capacity *admission.Capacity
	// Waits reports whether requests wait for a reservation of a model.
	Waits func(model string) bool
	// Retry lets the waiters of a model try again.
	Retry func(model string)
}

// NewGate connects the gate. It must be called before the client runs.
func NewGate(client *shared.Client, o GateOptions) *Gate {
	g := &Gate{o: o}
	g.levels = client.NewLevels("gate", shared.LevelOptions{Own: g.own, All: g.all, OnChange: g.changed})
	o.Capacity.Share(admission.Sharing{
		Routers:  client.LastRouters,
		OnChange: g.levels.Changed,
		Retry:    o.Retry,
	})
	return g
}

// own returns this router's level of a model.
func (g *Gate) own(model string) string {
	return encodeOccupancy(g.o.Capacity.Occupancy(model, g.o.Waits(model)), time.Now())
}

// all returns all levels of this router.
func (g *Gate) all() map[string]string {
	levels := map[string]string{}
	for _, model := range g.o.Capacity.Occupied() {
		if level := g.own(model); level != "" {
			levels[model] = level
		}
	}
	return levels
}

// changed gives the levels of the other routers to the gate.
func (g *Gate) changed(model string) {
	g.reading.Lock()
	var others []admission.Occupancy
	now := time.Now()
	g.levels.Each(model, func(level string) {
		if o, ok := decodeOccupancy(level, now); ok {
			others = append(others, o)
		}
	})
	g.o.Capacity.SetOthers(model, others)
	g.reading.Unlock()
	g.o.Retry(model)
}

// occupancyVersion is the first byte of a level. A router ignores other versions.
const occupancyVersion = 1

// largestOccupancy is the largest number of a level. The sum of those of many routers is a number,
// too.
const largestOccupancy = 1 << 50

// longestWait is in µs. A longer wait counts as that long.
const longestWait = 1e12

// encodeOccupancy returns the level of an occupancy, "" if it is empty: the version; the
// requests, the tokens, and for how many µs requests have waited, 0 for none, as varints; and
// for each key its hash and its tokens.
func encodeOccupancy(o admission.Occupancy, now time.Time) string {
	var waited int64
	if !o.WaitsSince.IsZero() {
		waited = max(1, now.Sub(o.WaitsSince).Microseconds())
	}
	if o.Requests == 0 && waited == 0 {
		return ""
	}
	level := []byte{occupancyVersion}
	for _, n := range []int64{o.Requests, o.Tokens, waited} {
		level = binary.AppendUvarint(level, uint64(n)) //nolint:gosec // none is negative
	}
	for hash, tokens := range o.ByKey {
		level = append(level, hash[:]...)
		level = binary.AppendUvarint(level, uint64(tokens)) //nolint:gosec // it is not negative
	}
	return string(level)
}

// decodeOccupancy returns what a level says, and whether it is one.
func decodeOccupancy(level string, now time.Time) (o admission.Occupancy, ok bool) {
	if level == "" || level[0] != occupancyVersion {
		return o, false
	}
	r := reader{rest: level[1:]}
	number := func() int64 {
		n := r.number()
		if n > largestOccupancy {
			r.bad = true
			return 0
		}
		return int64(n)
	}
	o.Requests, o.Tokens = number(), number()
	if waited := number(); waited > 0 {
		o.WaitsSince = now.Add(-time.Duration(min(waited, longestWait)) * time.Microsecond)
	}
	o.ByKey = map[admission.KeyHash]int64{}
	for !r.bad && len(r.rest) >= len(admission.KeyHash{}) {
		var hash admission.KeyHash
		r.rest = r.rest[copy(hash[:], r.rest):]
		o.ByKey[hash] = number()
	}
	return o, !r.bad && r.rest == ""
}
