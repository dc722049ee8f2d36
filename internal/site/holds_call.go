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
	// groupsPerCall is how many groups of requests one call asks for.
	groupsPerCall = 200
	// writesPerCall is how many counts one call writes beside those that it asks about.
	writesPerCall = 500
	// mostDirty is how many counts are kept to be written while calls fail, or none is made.
	mostDirty = 10_000
)

// holdsScript writes the counts of a router, then answers groups of asks in order, and counts the
// requests that fit. It returns for each group how many fit, and then for each key what the other
// routers hold. Its keys are the hashes of the limits. Its arguments are the router, the life of a
// count in ms, and the count of each key; then for each group how many requests there are, whether
// they are to be counted, the number of their limits, and for each the index of its key and the
// limit. A hash has a field for each router with the count and its end in ms, by the server's clock.
var holdsScript = shared.NewScript("holds", shared.LuaNow+`
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
  local fits, counted, n = tonumber(ARGV[at]), ARGV[at + 1], tonumber(ARGV[at + 2])
  local first, last = at + 3, at + 1 + 2 * n
  for l = first, last, 2 do
    local i = tonumber(ARGV[l])
    fits = math.min(fits, tonumber(ARGV[l + 1]) - own[i] - ofOthers(i))
  end
  fits = math.max(fits, 0)
  if counted == '1' then
    for l = first, last, 2 do
      local i = tonumber(ARGV[l])
      own[i] = own[i] + fits
    end
  end
  answers[#answers + 1] = fits
  at = last + 2
end

for i, key in ipairs(KEYS) do
  if own[i] == 0 then
    redis.call('HDEL', key, router)
  else
    redis.call('HSET', key, router, string.format('%d %d', own[i], now + life))
    redis.call('PEXPIRE', key, life)
  end
  answers[#answers + 1] = ofOthers(i)
end
return answers
`)

// holdsCall is what one call writes and asks.
type holdsCall struct {
	limits []holdLimit
	counts []int // of limits
	alone  []int // of limits: how many of these requests were decided alone
	index  map[holdLimit]int
	groups []*holdGroup
}

// holdGroup are asks with the same limits.
type holdGroup struct {
	limits []holdLimit
	look   bool // they are not to be counted
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
			answer, err := c.send(ctx, h)
			h.finish(c, answer, err)
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
		h.decideAll(h.asked)
		h.asked = nil
		h.limitDirty()
		return nil // the first beat writes what has changed
	}
	c := &holdsCall{index: map[holdLimit]int{}}
	h.asked = c.take(h.asked)
	for _, g := range c.groups {
		h.include(c, g.limits)
	}
	for l := range h.dirty {
		if len(c.limits) >= writesPerCall+len(c.groups) {
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

// take has c ask for the requests, without those that nobody waits for, and returns the rest.
func (c *holdsCall) take(asked []*holdAsk) (rest []*holdAsk) {
	type id struct {
		last holdLimit
		look bool
	}
	groups := map[id]*holdGroup{}
	for _, a := range asked {
		if a.late {
			continue
		}
		limits := a.hold.limits
		of := id{limits[len(limits)-1], a.look}
		g := groups[of]
		if g == nil && len(c.groups) == groupsPerCall {
			rest = append(rest, a)
			continue
		}
		if g == nil {
			g = &holdGroup{limits: limits, look: a.look}
			groups[of] = g
			c.groups = append(c.groups, g)
		}
		g.asks = append(g.asks, a)
	}
	return rest
}

// include has c write the counts of limits. The lock must be held.
func (h *Holds) include(c *holdsCall, limits []holdLimit) {
	for _, l := range limits {
		if _, there := c.index[l]; there {
			continue
		}
		c.limits = append(c.limits, l)
		c.counts = append(c.counts, h.counts[l])
		c.alone = append(c.alone, h.alone[l])
		c.index[l] = len(c.limits)
		delete(h.dirty, l)
	}
}

// send makes the call, and returns the answer of the script.
func (c *holdsCall) send(ctx context.Context, h *Holds) ([]int64, error) {
	keys := make([]string, len(c.limits))
	args := []string{h.client.ID(), millis(shared.Life)}
	for i, l := range c.limits {
		keys[i] = h.keyOf(l)
		args = append(args, strconv.Itoa(c.counts[i]))
	}
	for _, g := range c.groups {
		counted := "1"
		if g.look {
			counted = "0"
		}
		args = append(args, strconv.Itoa(len(g.asks)), counted, strconv.Itoa(len(g.limits)))
		for _, l := range g.limits {
			args = append(args, strconv.Itoa(c.index[l]), strconv.Itoa(h.limitOf(l)))
		}
	}
	// The requests do not wait longer than patience. A late answer is still of use.
	answer, err := holdsScript.RunSlowly(ctx, h.client, keys, args).AsIntSlice()
	if err != nil {
		return nil, err //nolint:wrapcheck // it is counted, and only whether there is one matters
	}
	if len(answer) != len(c.groups)+len(c.limits) {
		return nil, errAnswer
	}
	return answer, nil
}

// errAnswer means that the server did not run the script.
var errAnswer = errors.New("the answer does not have the length that belongs to the call")

// finish gives the answers to those that wait. After an error the router decides alone.
func (h *Holds) finish(c *holdsCall, answer []int64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	began := h.began
	h.began = time.Time{}
	if err != nil {
		h.failed(c)
		return
	}
	h.know(c, answer[len(c.groups):], began.Add(shared.Life))
	for i, g := range c.groups {
		h.answer(g, int(answer[i]))
	}
	if len(h.dirty) > 0 {
		h.wakeUp()
	}
}

// answer gives the requests of a group their answers; n fit, or if they only look any n above 0
// is yes. The answer is no, too, if this router has decided so much alone since the call began
// that a limit is reached. The lock must be held.
func (h *Holds) answer(g *holdGroup, n int) {
	for _, a := range g.asks {
		if a.late {
			continue
		}
		fits := n > 0 && h.decide(a, h.free)
		if fits && !g.look {
			n--
		}
		a.answer <- fits
	}
	if n > 0 && !g.look {
		h.changed(g.limits) // the server counted n that nobody holds, or that count twice
	}
}

// failed decides the requests of a call alone, and has its counts written again. The lock
// must be held.
func (h *Holds) failed(c *holdsCall) {
	for _, g := range c.groups {
		h.decideAll(g.asks)
	}
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

// decideAll decides the requests that wait alone. The lock must be held.
func (h *Holds) decideAll(asks []*holdAsk) {
	for _, a := range asks {
		if !a.late {
			a.answer <- h.decideAlone(a)
		}
	}
}
