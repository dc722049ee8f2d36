// SPDX-License-Identifier: Apache-2.0

package wake

import (
	"context"
	"strings"
	"time"
)

const (
	// claimTime is for how long a router claims a hook before a call. It is longer than the
	// call may take.
	claimTime = callTimeout + 2*time.Second
	// claimGrace is for how much longer than until its retry a router claims a hook whose call
	// failed.
	claimGrace = time.Second
	// claimLook is the longest time until a router looks again whether another one still calls
	// the hook.
	claimLook = time.Second
)

// Claims are the claims of a site's routers to call a hook: one router has it at a time. They
// are safe for concurrent use.
type Claims interface {
	// Claim claims a hook for d, unless another router has claimed it. On an error this router
	// decides alone.
	Claim(ctx context.Context, hook, key string, d time.Duration) (Claim, error)
	// End says how a call ended. The claim then lasts as long as e says.
	End(ctx context.Context, hook string, e CallEnd)
	// Release gives up a claim after a failed call.
	Release(ctx context.Context, hook string)
}

// Claim is the answer to a claim.
type Claim struct {
	Mine bool
	// Key is the Idempotency-Key of the call: that of the last router whose call did not
	// succeed, else the given one. Only with Mine.
	Key string

	// Ends is in how long the claim of the other router ends, and End how its call ended. End is
	// not Done while the call runs, or will be made again.
	Ends time.Duration
	End  CallEnd
}

// CallEnd is how a call ended.
type CallEnd struct {
	Lasts   time.Duration // of the claim from then on
	Done    bool          // the call is not made again before that
	Refused string        // why it was refused; empty: it was not
}

// endOf returns how a call ended that may be made again after a time.
func (r result) endOf(again time.Duration) CallEnd {
	if r.outcome.retryable() {
		return CallEnd{Lasts: again + claimGrace}
	}
	return CallEnd{Lasts: again, Done: true, Refused: r.reason}
}

// id names the hook of a call for the claims.
func (c *call) id() string { return strings.Join([]string{c.name, c.hook.Method, c.hook.URL}, "\x00") }

// claim reports whether this router may make a call, and sets the key of the call. If another
// router has the claim, the hook is looked at again later.
func (w *Webhooks) claim(m *model, c *call) bool {
	if w.o.Claims == nil {
		return true
	}
	claim, err := w.o.Claims.Claim(w.callCtx, c.id(), c.key, claimTime)
	switch {
	case err != nil:
		return true // each router calls it, as if it were alone
	case claim.Mine:
		c.key = claim.Key
		return true
	}
	w.leave(m, c, claim)
	return false
}

// leave leaves a call to another router.
func (w *Webhooks) leave(m *model, c *call, claim Claim) {
	w.mu.Lock()
	failed := false
	if m.last.sameCall(*c.hook) {
		wait := claim.Ends
		if claim.End.Done {
			m.tries = 0
			failed = claim.End.Refused != "" && !m.refused && !m.up
			m.refused = claim.End.Refused != ""
		} else {
			wait = min(wait, claimLook)
		}
		m.notBefore = time.Now().Add(wait)
	}
	w.mu.Unlock()
	if failed {
		w.fail(c, claim.End.Refused)
	}
}

// end says how a call ended.
func (w *Webhooks) end(c *call, e CallEnd) {
	if w.o.Claims != nil {
		w.o.Claims.End(w.afterCalls(), c.id(), e)
	}
}

// release gives up the claim after a failed call that is not made again, nil for none.
func (w *Webhooks) release(failed *call) {
	if w.o.Claims != nil && failed != nil {
		w.o.Claims.Release(w.afterCalls(), failed.id())
	}
}

// afterCalls returns the context in which the end of a call is said, also of one that Stop has
// canceled.
func (w *Webhooks) afterCalls() context.Context { return context.WithoutCancel(w.callCtx) }
