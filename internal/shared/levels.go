// SPDX-License-Identifier: Apache-2.0

package shared

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/holdgate/holdgate/internal/pause"
)

// changesEvery is the shortest time between two writes of changed levels.
const changesEvery = 5 * time.Millisecond

// Levels are values by name that each router writes for itself and that all others read. A
// value of a router ends when the router leaves, or Life after it was last written.
type Levels struct {
	c        *Client
	name     string
	own      func(name string) string
	all      func() map[string]string
	onChange func(name string)
	onGone   func(values map[string]string)
	wake     chan struct{} // receives a token when dirty has names
	number   uint64        // of the last write; used only by run and beat under writing
	writing  sync.Mutex    // so that writes reach the server in the order of their numbers

	mu     sync.Mutex
	dirty  map[string]struct{}
	others map[string]*theirs // by router
}

// theirs are the levels of another router.
type theirs struct {
	number uint64 // of the write that they are from
	until  time.Time
	values map[string]string
}

// LevelOptions are the options of Levels.
type LevelOptions struct {
	// Own returns this router's value, "" for none, and All all of them. They are called from
	// several goroutines.
	Own func(name string) string
	All func() map[string]string
	// OnChange is called when a value of another router may have changed.
	OnChange func(name string)
	// OnGone is called with the last values of another router that left or died, before
	// OnChange; nil: nobody asks. It may be called twice.
	OnGone func(values map[string]string)
}

// NewLevels returns the levels with a name. It must be called before Run.
func (c *Client) NewLevels(name string, o LevelOptions) *Levels {
	if o.OnGone == nil {
		o.OnGone = func(map[string]string) {}
	}
	l := &Levels{
		c: c, name: name, own: o.Own, all: o.All, onChange: o.OnChange, onGone: o.OnGone, wake: make(chan struct{}, 1),
		dirty: map[string]struct{}{}, others: map[string]*theirs{},
	}
	c.OnMessage(name, l.receive)
	c.OnBeat(l.beat)
	c.Go(l.run)
	return l
}

// Changed has a value of this router written and published soon, as it is then. It does not
// block.
func (l *Levels) Changed(name string) {
	l.mu.Lock()
	l.dirty[name] = struct{}{}
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Each calls f with the value of each other router that has one. f is called under a lock and
// must be short.
func (l *Levels) Each(name string, f func(value string)) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range l.others {
		if v, ok := t.values[name]; ok && now.Before(t.until) {
			f(v)
		}
	}
}

// EachLast is Each with the values of routers whose life is over, too, as long as OnGone was not
// called with them.
func (l *Levels) EachLast(name string, f func(value string)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range l.others {
		if v, ok := t.values[name]; ok {
			f(v)
		}
	}
}

// Names calls f with the name of each value of each other router.
func (l *Levels) Names(f func(name string)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range l.others {
		for name := range t.values {
			f(name)
		}
	}
}

// writeChange writes one value and publishes it.
var writeChange = NewScript("level", `
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[2])
else
  redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
end
redis.call('HSET', KEYS[1], '', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('PUBLISH', KEYS[2], ARGV[5])
return 0
`)

// writeAll replaces all values of a router. Lua cannot pass thousands of arguments at once.
var writeAll = NewScript("levels", `
redis.call('DEL', KEYS[1])
for i = 2, #ARGV, 1000 do
  redis.call('HSET', KEYS[1], unpack(ARGV, i, math.min(i + 999, #ARGV)))
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 0
`)

// run writes changes until ctx ends.
func (l *Levels) run(ctx context.Context) {
	tick := time.NewTicker(Beat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			l.expire()
			continue
		case <-l.wake:
		}
		l.mu.Lock()
		dirty := l.dirty
		l.dirty = map[string]struct{}{}
		l.mu.Unlock()
		for name := range dirty {
			l.write(ctx, name)
		}
		pause.For(ctx, changesEvery)
	}
}

// write writes and publishes the current value of a name.
func (l *Levels) write(ctx context.Context, name string) {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.number++
	number, value := strconv.FormatUint(l.number, 10), l.own(name)
	message := l.c.id + " " + number + " " + Named(name, value)
	_ = writeChange.RunSlowly(ctx, l.c, []string{l.key(l.c.id), l.c.Key(l.name)},
		[]string{number, name, value, lifeText, message}).Error() // it is counted, and the next beat writes again
}

// beat writes all values of this router and reads those of the others.
func (l *Levels) beat(ctx context.Context) {
	l.writeAll(ctx)
	living := l.c.Routers()
	l.keep(living)
	for _, id := range living {
		if id == l.c.id {
			continue
		}
		values, err := l.c.DoSlowly(ctx, "levels", func(b valkey.Builder) valkey.Completed {
			return b.Hgetall().Key(l.key(id)).Build()
		}).AsStrMap()
		if err != nil {
			return // it is counted, and the next beat tries again
		}
		l.replace(id, values)
	}
}

func (l *Levels) writeAll(ctx context.Context) {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.number++
	args := []string{lifeText, "", strconv.FormatUint(l.number, 10)}
	for name, value := range l.all() {
		args = append(args, name, value)
	}
	_ = writeAll.RunSlowly(ctx, l.c, []string{l.key(l.c.id)}, args).Error() // it is counted, and the next beat writes again
}

// keep removes the values of the routers that are not among ids.
func (l *Levels) keep(ids []string) {
	l.remove(func(id string, _ *theirs) bool { return !slices.Contains(ids, id) })
}

// expire removes the values whose life is over.
func (l *Levels) expire() {
	now := time.Now()
	l.remove(func(_ string, t *theirs) bool { return !now.Before(t.until) })
}

// remove removes the values of the routers that are gone. OnGone is called first, so that there is
// no moment at which neither EachLast nor whom OnGone tells has them.
func (l *Levels) remove(gone func(id string, t *theirs) bool) {
	told := map[string]uint64{} // the number of the values by router
	for id, t := range l.find(gone) {
		told[id] = t.number
		l.onGone(t.values)
	}
	changed := map[string]struct{}{}
	l.mu.Lock()
	for id, t := range l.others {
		if number, ok := told[id]; !ok || number != t.number || !gone(id, t) {
			continue // it is not gone, or has written meanwhile
		}
		for name := range t.values {
			changed[name] = struct{}{}
		}
		delete(l.others, id)
	}
	l.mu.Unlock()
	for name := range changed {
		l.onChange(name)
	}
}

// find returns copies of the values of routers.
func (l *Levels) find(is func(id string, t *theirs) bool) map[string]theirs {
	found := map[string]theirs{}
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, t := range l.others {
		if is(id, t) {
			found[id] = theirs{number: t.number, values: maps.Clone(t.values)}
		}
	}
	return found
}

// replace sets all values of another router, unless newer ones are known.
func (l *Levels) replace(id string, values map[string]string) {
	number, err := strconv.ParseUint(values[""], 10, 64)
	if err != nil {
		return // the router has written nothing yet
	}
	delete(values, "")
	l.mu.Lock()
	t := l.router(id)
	if number < t.number {
		l.mu.Unlock()
		return
	}
	changed := difference(t.values, values)
	t.number, t.until, t.values = number, time.Now().Add(Life), values
	l.mu.Unlock()
	for _, name := range changed {
		l.onChange(name)
	}
}

// difference returns the names whose values differ.
func difference(a, b map[string]string) (names []string) {
	for name, v := range b {
		if before, ok := a[name]; !ok || before != v {
			names = append(names, name)
		}
	}
	for name := range a {
		if _, ok := b[name]; !ok {
			names = append(names, name)
		}
	}
	return names
}

// receive sets one value of another router.
func (l *Levels) receive(message string) {
	id, rest, _ := strings.Cut(message, " ")
	numberText, rest, _ := strings.Cut(rest, " ")
	number, err := strconv.ParseUint(numberText, 10, 64)
	name, value, ok := CutNamed(rest)
	if id == l.c.id || err != nil || !ok {
		return
	}
	name = strings.Clone(name) // it may be kept longer than the message
	l.mu.Lock()
	t := l.router(id)
	if number <= t.number {
		l.mu.Unlock()
		return
	}
	before, had := t.values[name]
	t.number, t.until = number, time.Now().Add(Life)
	if value == "" {
		delete(t.values, name)
	} else {
		t.values[name] = value
	}
	l.mu.Unlock()
	if had != (value != "") || before != value {
		l.onChange(name)
	}
}

// router returns the levels of another router, and adds it if it is new. The lock must be
// held.
func (l *Levels) router(id string) *theirs {
	t := l.others[id]
	if t == nil {
		t = &theirs{values: map[string]string{}}
		l.others[id] = t
	}
	return t
}

func (l *Levels) key(router string) string { return l.c.Key(l.name, router) }
