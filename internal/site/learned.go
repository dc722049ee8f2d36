// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/holdgate/holdgate/internal/shared"
)

const (
	// timesLife is how long the times of models are kept after the last wake of any.
	timesLife = 30 * 24 * time.Hour
	// sameWake is the time within which two routers that measured a wake of a model have
	// measured the same one.
	sameWake = 5 * time.Second
	// timesKept is how many durations are kept of each model, and modelsKept of how many models.
	timesKept, modelsKept = 20, 10_000
	// wakesKept is how many wakes may wait to be written.
	wakesKept = 1000
)

// Times are the learned times of a router.
type Times interface {
	// Times returns how long the last wakes of a model took, the oldest first.
	Times(model string) []time.Duration
	// SetTimes replaces them.
	SetTimes(model string, took []time.Duration)
}

// Learned is how long the last wakes of each model took, on all routers of the site. Each wake is
// added by one script, and the new list is told to all routers. A router that starts reads all
// lists at its first beat, and all do when a message was lost. A wake that is measured while the
// server does not answer is known to its router only, until the next one.
type Learned struct {
	c       *shared.Client
	times   func() Times
	wake    chan struct{} // receives a token when there are unwritten ones
	version string        // of the lists that were read last; used by beat only

	mu        sync.Mutex
	unwritten []learned
}

// learned is a wake that was measured here.
type learned struct {
	model string
	took  time.Duration
}

// NewLearned returns the learned times. It must be called before the client runs.
func NewLearned(c *shared.Client, times func() Times) *Learned {
	l := &Learned{c: c, times: times, wake: make(chan struct{}, 1)}
	c.OnMessage("times", l.receive)
	c.OnBeat(l.beat)
	c.Go(l.run)
	return l
}

// Woke tells the other routers how long a wake took that was measured here. It does not block.
func (l *Learned) Woke(model string, took time.Duration) {
	l.mu.Lock()
	if len(l.unwritten) < wakesKept {
		l.unwritten = append(l.unwritten, learned{strings.Clone(model), took})
	}
	l.mu.Unlock()
	notify(l.wake)
}

// addTime adds a duration to the list of a model, unless it is of the last wake of the list: then
// the longer one counts. A list is "end duration ...", in milliseconds; the field without a name
// counts the changes. If the server has no list, it takes the router's.
var addTime = shared.NewScript("learn", shared.LuaNow+`
local took, same, kept, models = tonumber(ARGV[2]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local stored = redis.call('HGET', KEYS[1], ARGV[1])
local ends, list = now, ARGV[3]
if stored then
  ends, list = string.match(stored, '^(%d+)(.*)$')
  ends = tonumber(ends)
elseif redis.call('HLEN', KEYS[1]) > models then
  local oldest, since
  local all = redis.call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    local at = tonumber(string.match(all[i + 1], '^%d+'))
    if all[i] ~= '' and (not since or at < since) then
      oldest, since = all[i], at
    end
  end
  redis.call('HDEL', KEYS[1], oldest)
end
local times = {}
for t in string.gmatch(list, '%d+') do
  times[#times + 1] = tonumber(t)
end
if stored and math.abs(now - ends) < same then
  times[#times] = math.max(times[#times], took)
elseif stored then
  times[#times + 1] = took
  ends = now
end
while #times > kept do
  table.remove(times, 1)
end
for i = 1, #times do
  times[i] = string.format('%d', times[i])
end
list = table.concat(times, ' ')
redis.call('HSET', KEYS[1], ARGV[1], string.format('%d', ends) .. ' ' .. list)
redis.call('HINCRBY', KEYS[1], '', 1)
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('PUBLISH', KEYS[2], #ARGV[1] .. ' ' .. ARGV[1] .. list)
return 0
`)

// run writes the wakes until ctx ends.
func (l *Learned) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		}
		l.mu.Lock()
		unwritten := l.unwritten
		l.unwritten = nil
		l.mu.Unlock()
		for _, w := range unwritten {
			l.write(ctx, w)
		}
	}
}

func (l *Learned) write(ctx context.Context, w learned) {
	own := l.times().Times(w.model)
	if len(own) == 0 {
		own = []time.Duration{w.took}
	}
	_ = addTime.RunSlowly(ctx, l.c, []string{l.key(), l.c.Key("times")}, []string{
		w.model, millis(w.took), timesText(own), millis(timesLife), millis(sameWake),
		strconv.Itoa(timesKept), strconv.Itoa(modelsKept),
	}).Error() // it is counted
}

// beat reads all lists if any has changed since they were last read.
func (l *Learned) beat(ctx context.Context) {
	version, err := l.c.DoSlowly(ctx, "times", func(b valkey.Builder) valkey.Completed {
		return b.Hget().Key(l.key()).Field("").Build()
	}).ToString()
	if err != nil || version == l.version {
		return
	}
	lists, err := l.c.DoSlowly(ctx, "times", func(b valkey.Builder) valkey.Completed {
		return b.Hgetall().Key(l.key()).Build()
	}).AsStrMap()
	if err != nil {
		return
	}
	l.version = lists[""]
	delete(lists, "")
	for model, text := range lists {
		_, list, _ := strings.Cut(text, " ")
		l.set(model, list)
	}
}

// receive reads the message of a list.
func (l *Learned) receive(message string) {
	if model, list, ok := shared.CutNamed(message); ok {
		l.set(model, list)
	}
}

// set replaces the list of this router for a model.
func (l *Learned) set(model, list string) {
	if took := parseTimes(list); len(took) > 0 {
		l.times().SetTimes(model, took)
	}
}

func (l *Learned) key() string { return l.c.Key("times", "of") }

// timesText returns durations in milliseconds.
func timesText(all []time.Duration) string {
	var b strings.Builder
	for i, d := range all {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(millis(d))
	}
	return b.String()
}

// parseTimes reads durations in milliseconds, nil if the text is something else.
func parseTimes(text string) []time.Duration {
	var all []time.Duration
	for word := range strings.FieldsSeq(text) {
		n, err := strconv.ParseInt(word, 10, 32)
		if err != nil || n < 0 || len(all) == timesKept {
			return nil
		}
		all = append(all, time.Duration(n)*time.Millisecond)
	}
	return all
}
