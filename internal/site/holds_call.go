// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/holdgate/holdgate/internal/shared"
)

const (
	// asksPerCall is how many requests one call asks for.
	asksPerCall = 200
	// writesPerCall is how many counts one call writes beside those that it asks about.
	writesPerCall = 500
	// mostDirty is how many counts are kept to be written while calls fail, or none is made.
	mostDirty = 10_000
)

// holdsScript writes the counts of a router, then answers asks in order, and counts those that
// fit. Its keys are the hashes of the limits. Its arguments are the router, the life of a
// count in ms, and the count of each key; then for each ask whether it is to be counted, the
// number of its limits, and for each the index of its key and the limit. A hash has a field
// for each router with the count and its end in ms, by the server's clock.
var holdsScript = shared.NewScript("holds", `
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
local router, life = ARGV[1], tonumber(ARGV[2])
local at = 3
local own, others = {}, {}
for i = 1, #KEYS do
  own[i] = tonumber(ARGV[at])
  at = at + 1
end

local function ofOthers(i)
  if others[i] then
    return others[i]
  end
  local sum, fields = 0, redis.call('HGETALL', KEYS[i])
  for f = 1, #fields, 2 do
    local count, ends = string.match(fields[f + 1], '^(%d+) (%d+)$')
    if not ends or tonumber(ends) <= now then
      redis.call('HDEL', KEYS[i], fields[f])
    elseif fields[f] ~= router then
      sum = sum + tonumber(count)
    end
  end
  others[i] = sum
  return sum
end

local answers = {}
while at <= #ARGV do
  local counted, n = ARGV[at], tonumber(ARGV[at + 1])
  local fits = 1
  for l = at + 2, at + 2 * n, 2 do
    local i = tonumber(ARGV[l])
    if own[i] + ofOthers(i) >= tonumber(ARGV[l + 1]) then
      fits = 0
    end
  end
  if fits == 1 and counted == '1' then
    for l = at + 2, at + 2 * n, 2 do
      local i = tonumber(ARGV[l])
      own[i] = own[i] + 1
    end
  end
  answers[#answers + 1] = fits
  at = at + 2 + 2 * n
end

for i, key in ipairs(KEYS) do
  if own[i] == 0 then
    redis.call('HDEL', key, router)
  else
    redis.call('HSET', key, router, string.format('%d %d', own[i], now + life))
    redis.call('PEXPIRE', key, life)
  end
end
return answers
`)

// holdsCall is what one call writes and asks.
type holdsCall struct {
	limits []holdLimit
	counts []int // of limits
	index  map[holdLimit]int
	asks   []*holdAsk
}

// run makes the calls, one at a time, until ctx ends.
func (h *Holds) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.wake:
		}
		for c := h.next(); c != nil; c = h.next() {
			fits, err := c.send(ctx, h)
			h.finish(c, fits, err)
			if err != nil {
				break // the next beat, or the next request, tries again
			}
		}
	}
}

// next returns the next call, nil if there is nothing to do or the server does not answer.
func (h *Holds) next() *holdsCall {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.client.Up() {
		h.alone(h.asked)
		h.asked = nil
		h.limitDirty()
		return nil // the first beat writes what has changed
	}
	c := &holdsCall{index: map[holdLimit]int{}}
	c.asks, h.asked = h.take()
	for _, a := range c.asks {
		h.include(c, a.hold.limits)
	}
	for l := range h.dirty {
		if len(c.limits) >= writesPerCall+len(c.asks) {
			h.wakeUp()
			break
		}
		h.include(c, []holdLimit{l})
	}
	if len(c.limits) == 0 {
		return nil
	}
	h.began = time.Now()
	return c
}

// take returns the asks for the next call, without those that nobody waits for, and the rest.
// The lock must be held.
func (h *Holds) take() (now, rest []*holdAsk) {
	for _, a := range h.asked {
		switch {
		case a.late:
		case len(now) < asksPerCall:
			now = append(now, a)
		default:
			rest = append(rest, a)
		}
	}
	return now, rest
}

// include has c write the counts of limits. The lock must be held.
func (h *Holds) include(c *holdsCall, limits []holdLimit) {
	for _, l := range limits {
		if _, there := c.index[l]; there {
			continue
		}
		c.limits = append(c.limits, l)
		c.counts = append(c.counts, h.counts[l])
		c.index[l] = len(c.limits)
		delete(h.dirty, l)
	}
}

// send makes the call, and returns the answers.
func (c *holdsCall) send(ctx context.Context, h *Holds) ([]int64, error) {
	keys := make([]string, len(c.limits))
	args := []string{h.client.ID(), strconv.FormatInt(shared.Life.Milliseconds(), 10)}
	for i, l := range c.limits {
		keys[i] = h.keyOf(l)
		args = append(args, strconv.Itoa(c.counts[i]))
	}
	for _, a := range c.asks {
		counted := "1"
		if a.look {
			counted = "0"
		}
		args = append(args, counted, strconv.Itoa(len(a.hold.limits)))
		for _, l := range a.hold.limits {
			args = append(args, strconv.Itoa(c.index[l]), strconv.Itoa(h.limitOf(l)))
		}
	}
	// The requests do not wait longer than patience. A late answer is still of use.
	fits, err := holdsScript.RunSlowly(ctx, h.client, keys, args).AsIntSlice()
	if err != nil {
		return nil, err //nolint:wrapcheck // it is counted, and only whether there is one matters
	}
	if len(fits) != len(c.asks) {
		return nil, errAnswers
	}
	return fits, nil
}

// errAnswers means that the server did not run the script.
var errAnswers = errors.New("the number of answers is not that of the asks")

// finish gives the answers to those that wait. After an error it is yes for all.
func (h *Holds) finish(c *holdsCall, fits []int64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.began = time.Time{}
	if err != nil {
		h.failed(c)
		return
	}
	for i, a := range c.asks {
		counted := fits[i] == 1 && !a.look
		switch {
		case a.late && counted:
			h.changed(a.hold.limits) // nobody holds it, or it counts twice
		case a.late:
		default:
			if counted {
				a.hold.counted = true
				h.add(a.hold.limits, 1)
			}
			a.answer <- fits[i] == 1
		}
	}
	if len(h.dirty) > 0 {
		h.wakeUp()
	}
}

// failed lets the requests of a call decide alone, and has its counts written again. The lock
// must be held.
func (h *Holds) failed(c *holdsCall) {
	h.alone(c.asks)
	h.changed(c.limits)
	h.limitDirty()
}

// limitDirty forgets which counts have changed if they are many: a count ends by itself, and each
// beat writes those that are not 0. The lock must be held.
func (h *Holds) limitDirty() {
	if len(h.dirty) > mostDirty {
		clear(h.dirty)
	}
}

// alone lets requests decide alone.
func (h *Holds) alone(asks []*holdAsk) {
	for _, a := range asks {
		if !a.late {
			a.answer <- true
		}
	}
}
