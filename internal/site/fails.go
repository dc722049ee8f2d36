// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/holdgate/holdgate/internal/shared"
)

const (
	// failsKept is how many failed wakes may wait to be written.
	failsKept = 1000
	// maxReason is the longest reason that is told to the other routers, in bytes.
	maxReason = 1024
)

// Fails are the failed wakes of the site whose cooldown has not ended. A failed wake is told to the
// other routers at once; one whose message is lost, and one from before this router started, is
// read at the next beat. While the server does not answer, a router knows its own and those that
// it was told before; it tells its own later if their cooldown still runs then.
type Fails struct {
	c      *shared.Client
	log    zerolog.Logger
	onFail func(model, reason string, until time.Time) (taken bool)
	wake   chan struct{} // receives a token when there are unwritten ones

	mu        sync.Mutex
	number    uint64
	unwritten []fail
	known     map[string]time.Time // their ends, by id
}

// fail is a failed wake.
type fail struct {
	id            string // the router and a number
	model, reason string
	until         time.Time
}

// NewFails returns the failed wakes. onFail is called for each of another router, with the end of
// its cooldown, and again at each beat until it returns true; it must not block. NewFails must be
// called before the client runs.
func NewFails(c *shared.Client, log zerolog.Logger, onFail func(model, reason string, until time.Time) (taken bool)) *Fails {
	f := &Fails{c: c, log: log, onFail: onFail, wake: make(chan struct{}, 1), known: map[string]time.Time{}}
	c.OnMessage("fails", f.receive)
	c.OnBeat(f.beat)
	c.Go(f.run)
	return f
}

// Failed tells the other routers of a wake that failed on this one. It does not block.
func (f *Fails) Failed(model, reason string, cooldown time.Duration) {
	until := time.Now().Add(cooldown)
	f.mu.Lock()
	f.number++
	id := f.c.ID() + "-" + strconv.FormatUint(f.number, 10)
	f.known[id] = until
	if len(f.unwritten) < failsKept {
		f.unwritten = append(f.unwritten, fail{id, model, clip(reason), until})
	}
	f.mu.Unlock()
	notify(f.wake)
}

// clip returns text in UTF-8 of at most maxReason bytes.
func clip(text string) string { return strings.ToValidUTF8(text[:min(len(text), maxReason)], "") }

// writeFail stores a failed wake until its end, as "end id reason", and publishes it.
var writeFail = shared.NewScript("fail", shared.LuaNow+`
local left = tonumber(ARGV[4])
if left > 0 then
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%d', now + left) .. ' ' .. ARGV[2] .. ' ' .. ARGV[3])
  if redis.call('PTTL', KEYS[1]) < left then
    redis.call('PEXPIRE', KEYS[1], left)
  end
end
redis.call('PUBLISH', KEYS[2], ARGV[5])
return 0
`)

// readFails removes the failed wakes that are over, and returns the others: of each the model, what
// is left in milliseconds, and "id reason".
var readFails = shared.NewScript("fails", shared.LuaNow+`
local all = redis.call('HGETALL', KEYS[1])
local found = {}
for i = 1, #all, 2 do
  local ends, rest = string.match(all[i + 1], '^(%d+) (.*)$')
  if not ends or tonumber(ends) <= now then
    redis.call('HDEL', KEYS[1], all[i])
  else
    found[#found + 1] = all[i]
    found[#found + 1] = string.format('%d', tonumber(ends) - now)
    found[#found + 1] = rest
  end
end
return found
`)

// run writes failed wakes until ctx ends.
func (f *Fails) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
			f.write(ctx)
		}
	}
}

// write writes what is unwritten. What cannot be written now is tried again at the next beat.
func (f *Fails) write(ctx context.Context) {
	f.mu.Lock()
	unwritten := f.unwritten
	f.unwritten = nil
	f.mu.Unlock()
	var again []fail
	for _, w := range unwritten {
		left := millis(max(0, time.Until(w.until)))
		message := w.id + " " + left + " " + shared.Named(w.model, w.reason)
		err := writeFail.RunSlowly(ctx, f.c, []string{f.key(), f.c.Key("fails")}, []string{w.model, w.id, w.reason, left, message}).Error()
		if err != nil && time.Now().Before(w.until) {
			again = append(again, w)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unwritten = append(again, f.unwritten...)
}

// beat reads what the other routers have stored.
func (f *Fails) beat(ctx context.Context) {
	f.forget()
	f.mu.Lock()
	if len(f.unwritten) > 0 {
		notify(f.wake)
	}
	f.mu.Unlock()
	all, err := readFails.RunSlowly(ctx, f.c, []string{f.key()}, nil).AsStrSlice()
	if err != nil {
		return // it is counted, and the next beat tries again
	}
	for ; len(all) >= 3; all = all[3:] {
		id, reason, _ := strings.Cut(all[2], " ")
		f.learn(id, all[0], reason, all[1])
	}
}

// forget forgets the failed wakes that are over.
func (f *Fails) forget() {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, until := range f.known {
		// Another router may still see what has just ended here.
		if now.Sub(until) > shared.Life {
			delete(f.known, id)
		}
	}
}

// receive reads the message of a failed wake.
func (f *Fails) receive(message string) {
	id, rest, _ := strings.Cut(message, " ")
	left, rest, _ := strings.Cut(rest, " ")
	if model, reason, ok := shared.CutNamed(rest); ok {
		f.learn(id, model, reason, left)
	}
}

// learn calls onFail unless the failed wake is known. left is in milliseconds. One that is not
// taken is not known yet.
func (f *Fails) learn(id, model, reason, left string) {
	n, err := strconv.ParseInt(left, 10, 32)
	if err != nil || id == "" || n < 0 {
		return
	}
	until := time.Now().Add(time.Duration(n) * time.Millisecond)
	f.mu.Lock()
	_, known := f.known[id]
	if !known {
		f.known[id] = until
	}
	f.mu.Unlock()
	if known {
		return
	}
	if f.onFail(model, clip(reason), until) {
		f.log.Warn().Str("model", model).Str("reason", clip(reason)).Msg("the wake failed on another router")
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.known, id)
}

func (f *Fails) key() string { return f.c.Key("fails", "now") }
