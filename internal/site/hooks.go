// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/holdgate/holdgate/internal/shared"
	"github.com/holdgate/holdgate/internal/wake"
)

// Hooks are the claims of the routers to call webhooks. They are a wake.Claims. Without a
// server each router calls a hook once per cooldown.
//
// A hook has a hash: the router that has the claim, until when, how its call ended, and the
// Idempotency-Key. A claim that is over is kept for a while, for the key.
type Hooks struct {
	c *shared.Client
}

// NewHooks returns the claims of a site.
func NewHooks(c *shared.Client) *Hooks { return &Hooks{c: c} }

// keysKept is for how long the Idempotency-Key of a claim that is over is kept.
const keysKept = time.Minute

// The ends of calls, as the scripts have them.
const (
	hookFailed  = "failed" // it will be called again
	hookDone    = "done"
	hookRefused = "refused"
)

// Claim is part of wake.Claims.
func (h *Hooks) Claim(ctx context.Context, hook, key string, d time.Duration) (wake.Claim, error) {
	answer, err := claimHook.RunSlowly(ctx, h.c, h.keys(hook), []string{h.c.ID(), key, millis(d), millis(keysKept)}).AsStrSlice()
	if err != nil {
		return wake.Claim{}, fmt.Errorf("claiming a hook: %w", err)
	}
	if len(answer) == 1 {
		return wake.Claim{Mine: true, Key: answer[0]}, nil
	}
	if len(answer) != 3 {
		return wake.Claim{}, fmt.Errorf("claiming a hook: the server answers %d values", len(answer))
	}
	ends, err := strconv.ParseInt(answer[0], 10, 64)
	if err != nil {
		return wake.Claim{}, fmt.Errorf("claiming a hook: %w", err)
	}
	left := time.Duration(ends) * time.Millisecond
	done := answer[1] == hookDone || answer[1] == hookRefused
	return wake.Claim{Ends: left, End: wake.CallEnd{Lasts: left, Done: done, Refused: answer[2]}}, nil
}

// End is part of wake.Claims.
func (h *Hooks) End(ctx context.Context, hook string, e wake.CallEnd) {
	end := hookFailed
	switch {
	case e.Done && e.Refused != "":
		end = hookRefused
	case e.Done:
		end = hookDone
	}
	_ = endHook.RunSlowly(ctx, h.c, h.keys(hook), []string{h.c.ID(), end, e.Refused, millis(e.Lasts), millis(keysKept)}).Error() // it is counted, and the claim ends by itself
}

// Release is part of wake.Claims.
func (h *Hooks) Release(ctx context.Context, hook string) {
	_ = releaseHook.RunSlowly(ctx, h.c, h.keys(hook), []string{h.c.ID()}).Error() // it is counted, and the claim ends by itself
}

// keys returns the keys of the scripts. The name of a hook has secrets.
func (h *Hooks) keys(hook string) []string { return []string{h.c.Key("hook", hashOf(hook))} }

// claimHook gives a router a hook that no other has: it returns the key for its call. Else it
// returns in how many milliseconds the claim ends, how its call ended, and why it was refused.
// The router that has a claim gets it again, unless its call is done.
var claimHook = shared.NewScript("hook_claim", shared.LuaNow+`
local had = redis.call('HMGET', KEYS[1], 'router', 'until', 'end', 'refused', 'key')
local over = had[3] == 'done' or had[3] == 'refused'
if had[1] and now < tonumber(had[2]) and (over or had[1] ~= ARGV[1]) then
  return {string.format('%.0f', had[2] - now), had[3], had[4]}
end
local key = ARGV[2]
if had[5] and not over then
  key = had[5]
end
redis.call('HSET', KEYS[1], 'router', ARGV[1], 'until', string.format('%.0f', now + ARGV[3]), 'end', 'runs', 'refused', '', 'key', key)
redis.call('PEXPIRE', KEYS[1], ARGV[3] + ARGV[4])
return {key}
`)

// endHook says how a call ended, also of a router that had to call without a claim, unless
// another one has the claim.
var endHook = shared.NewScript("hook_end", shared.LuaNow+`
local had = redis.call('HMGET', KEYS[1], 'router', 'until')
if had[1] and now < tonumber(had[2]) and had[1] ~= ARGV[1] then
  return 0
end
redis.call('HSET', KEYS[1], 'router', ARGV[1], 'until', string.format('%.0f', now + ARGV[4]), 'end', ARGV[2], 'refused', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4] + ARGV[5])
return 1
`)

// releaseHook ends the claim of a router whose call failed.
var releaseHook = shared.NewScript("hook_release", `
local had = redis.call('HMGET', KEYS[1], 'router', 'end')
if had[1] == ARGV[1] and had[2] == 'failed' then
  redis.call('HSET', KEYS[1], 'until', '0')
end
return 0
`)
