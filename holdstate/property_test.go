// SPDX-License-Identifier: Apache-2.0

package holdstate

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/holdgate/holdgate/internal/target"
)

// twin drives a machine and the reference through the same events.
type twin struct {
	*rig
	ref *reference
}

var (
	someTarget = rapid.SampledFrom([]target.Target{llama, llama, llama, llama, embed, qwen})
	someKey    = rapid.SampledFrom([]string{"", "a", "b", "c"})
	someID     = rapid.SampledFrom([]string{"", "", idA, "6F9619FF-8B86-4D11-B42D-00CF4FC964FF", idB})
)

func someRequest(t *rapid.T) Request {
	return Request{
		Target: someTarget.Draw(t, "target"), Key: someKey.Draw(t, "key"),
		ClientIDs: [2]string{someID.Draw(t, "id")}, Bytes: rapid.Int64Range(0, 6).Draw(t, "bytes"),
		Claim: rapid.SampledFrom([]weight{1, 1, 1, 2, 9}).Draw(t, "weight"),
	}
}

// some picks a request that is meant, and skips the action without one.
func (tw *twin) some(t *rapid.T, meant func(*refRequest) bool) *refRequest {
	var of []*refRequest
	for _, q := range tw.ref.requests {
		if meant(q) {
			of = append(of, q)
		}
	}
	if len(of) == 0 {
		t.Skip("no such request")
	}
	return rapid.SampledFrom(of).Draw(t, "request")
}

func (tw *twin) admit(t *rapid.T, r Request) {
	refused := tw.ref.refuses(r)
	w, err := tw.Hold(r)
	if refused != "" {
		require.EqualError(t, err, refused)
		return
	}
	require.NoError(t, err)
	tw.ref.arrive(r, false).w = w
}

func (tw *twin) hold(t *rapid.T) { tw.admit(t, someRequest(t)) }

// holdAgain is an ordinary request that lost its replicas, in its old place.
func (tw *twin) holdAgain(t *rapid.T) {
	q := tw.some(t, func(q *refRequest) bool {
		return q.queue.ordinary && tw.ref.count(func(o *refRequest) bool { return o.seq == q.seq && o.state != Ended }) == 0
	})
	tw.admit(t, Request{Target: q.queue.target, Key: q.key, Bytes: 1, Seq: q.seq})
}

func (tw *twin) queue(t *rapid.T) {
	r := someRequest(t)
	refused := tw.ref.refusesQueue(r)
	w, err := tw.Queue(r)
	if refused != "" {
		require.EqualError(t, err, refused)
		return
	}
	require.NoError(t, err)
	tw.ref.arrive(r, true).w = w
}

func (tw *twin) say(t *rapid.T) {
	q := tw.some(t, func(*refRequest) bool { return true })
	tw.tell(q, rapid.SampledFrom([]Event{Expire, TimeOut, Leave, Done, Back}).Draw(t, "event"))
}

func (tw *twin) back(t *rapid.T) {
	tw.tell(tw.some(t, func(q *refRequest) bool { return q.state == Granted }), Back)
}

func (tw *twin) done(t *rapid.T) {
	tw.tell(tw.some(t, func(q *refRequest) bool { return q.state == Granted }), Done)
}

// tell reports e, and releases a slot that the request no longer has.
func (tw *twin) tell(q *refRequest, e Event) {
	slot, grant, reserved := q.slot, q.w.Status().Grant, q.grant
	tw.ref.tell(q, e)
	q.w.Report(e)
	if slot == nil || (q.state == Granted && q.slot == slot && q.w.Status().Grant == grant) {
		return
	}
	if !grant.(*fakeGrant).released {
		slot.free++
		delete(tw.ref.grants, reserved)
	}
	grant.Release()
	tw.ref.update(q.queue.target)
	tw.Update(q.queue.target)
	if q.state == Ended {
		q.slot = nil
	}
}

func (tw *twin) up(t *rapid.T) {
	target, slots := someTarget.Draw(t, "target"), rapid.IntRange(0, 2).Draw(t, "slots")
	real := tw.slots.add(target, slots)
	tw.ref.replicas[target] = append(tw.ref.replicas[target], &refReplica{free: slots, real: real})
	tw.ref.update(target)
	tw.Update(target)
}

func (tw *twin) down(t *rapid.T) {
	target := someTarget.Draw(t, "target")
	all := tw.ref.replicas[target]
	if len(all) == 0 {
		t.Skip("no replica")
	}
	i := rapid.IntRange(0, len(all)-1).Draw(t, "replica")
	tw.rig.down(target, all[i].real)
	tw.ref.replicas[target] = slices.Delete(all, i, i+1)
	tw.ref.update(target)
}

// grow frees a slot, or adds one to a replica.
func (tw *twin) grow(t *rapid.T) {
	target := someTarget.Draw(t, "target")
	if len(tw.ref.replicas[target]) == 0 {
		t.Skip("no replica")
	}
	r := rapid.SampledFrom(tw.ref.replicas[target]).Draw(t, "replica")
	r.free++
	r.real.free++
	tw.ref.update(target)
	tw.Update(target)
}

func (tw *twin) want(t *rapid.T) {
	model := someTarget.Draw(t, "target").Model
	d := rapid.SampledFrom([]time.Duration{-1, 0, time.Second, 45 * time.Second}).Draw(t, "for")
	tw.ref.want(model, d)
	tw.Want(model, d)
}

// seldom skips all but one of n tries of an action that should be rare.
func seldom(t *rapid.T, n int) {
	if rapid.IntRange(1, n).Draw(t, "really") > 1 {
		t.Skip("not this time")
	}
}

func (tw *twin) fail(t *rapid.T) {
	seldom(t, 3)
	model := someTarget.Draw(t, "target").Model
	reason := rapid.SampledFrom([]string{"no GPU", "no quota"}).Draw(t, "reason")
	tw.ref.failedUntil[model], tw.ref.failure[model] = time.Now().Add(tw.ref.o.Cooldown), reason
	tw.ref.endAll(OutcomeWakeFailed, reason, func(q *refRequest) bool {
		return q.state == Held && q.queue.target.Model == model
	})
	delete(tw.ref.wakes, model)
	tw.Fail(model, reason)
}

func (tw *twin) push(t *rapid.T) {
	seldom(t, 3)
	unplaced := map[target.Target]bool{}
	for _, target := range []target.Target{llama, embed, qwen} {
		unplaced[target] = rapid.IntRange(0, 3).Draw(t, "removed") == 0
	}
	tw.ref.unplaced = unplaced
	tw.ref.endAll(OutcomeRemoved, "", func(q *refRequest) bool { return q.state == Held && unplaced[q.queue.target] })
	tw.Reconcile(func(target target.Target) bool { return !unplaced[target] })
}

func (tw *twin) drain(t *rapid.T) {
	seldom(t, 20)
	tw.ref.draining = true
	tw.ref.drain()
	tw.Drain()
}

func (tw *twin) endWaits(t *rapid.T) {
	seldom(t, 40)
	tw.ref.draining, tw.ref.ending = true, true
	tw.ref.drain()
	tw.EndAll()
}

// begin is the first keepalive of a request.
func (tw *twin) begin(t *rapid.T) {
	q := tw.some(t, func(*refRequest) bool { return true })
	require.Equal(t, q.state != Ended, q.w.Begin())
	q.begun = true
}

func (*twin) pass(t *rapid.T) {
	pass(rapid.SampledFrom([]time.Duration{time.Nanosecond, time.Second, 29 * time.Second, time.Minute}).Draw(t, "time"))
}

// check compares all that can be seen.
func (tw *twin) check(t *rapid.T) {
	synctest.Wait() // for timers of this moment
	ref := tw.ref
	for i, q := range ref.requests {
		s := q.w.Status()
		require.Equal(t, Status{q.state, q.outcome, q.reason, q.err, s.Grant, q.seq}, s, "request %d", i)
		wantHeld, wantQueued := q.waited()
		held, queued := q.w.Waited()
		require.Equal(t, []time.Duration{wantHeld, wantQueued}, []time.Duration{held, queued}, "request %d", i)
		if q.slot != nil {
			require.Same(t, q.slot.real, s.Grant.(*fakeGrant).replica, "request %d", i)
		} else {
			require.True(t, s.Grant == nil || s.Grant.(*fakeGrant).released, "request %d has a slot too many", i)
		}
	}
	for _, target := range []target.Target{llama, embed, qwen} {
		model := target.Model
		require.Equal(t, ref.demand(model), tw.Demand(model), model)
		require.Equal(t, ref.wanted(model), tw.Wanted(model), model)
		if !ref.wanted(model) {
			delete(ref.wakes, model)
		}
		least, most := ref.retryAfter(model)
		retry := tw.RetryAfter(model)
		require.True(t, least <= retry && retry <= most, "%s: %d is not from %d to %d", model, retry, least, most)
		require.Equal(t, ref.woke[model], tw.learned(model), model)
		wanted := tw.rig.wanted(model)
		require.Equal(t, ref.wanted(model), len(wanted) > 0 && wanted[len(wanted)-1], "last reported of %s", model)
		waits := ref.count(func(q *refRequest) bool { return q.waits() && q.queue.target == target })
		require.Equal(t, waits > 0, tw.Waiting(target), target)
		for i, r := range ref.replicas[target] {
			require.Equal(t, r.free, r.real.free, "replica %d of %v", i, target)
		}
	}
	require.Equal(t, len(ref.wakes), int(tw.waking.Load()), "wakes")
	tw.checkLimits(t)
	require.Equal(t, ref.outcomes, tw.outcomes)
	require.ElementsMatch(t, ref.held, tw.rig.held)
}

// checkLimits reads the machine's own counts. The limits on counts are checked only if no
// request waited a second time, because such a request is not refused.
func (tw *twin) checkLimits(t *rapid.T) {
	tw.Machine.mu.Lock()
	defer tw.Machine.mu.Unlock()
	ref, l := tw.ref, tw.ref.o.Limits
	require.Equal(t, ref.count((*refRequest).placed), tw.Machine.held)
	require.Equal(t, tw.Machine.held, tw.atSite)
	require.Equal(t, ref.bytes(), tw.bytes)
	require.LessOrEqual(t, tw.bytes, l.Bytes+ref.queuedBytes())
	if ref.cameBack {
		return
	}
	require.LessOrEqual(t, tw.Machine.held, l.Total)
	for name, mod := range tw.models {
		require.LessOrEqual(t, mod.held, l.PerModel, name)
		require.NotContains(t, mod.byKey, "", name)
		for key, n := range mod.byKey {
			require.LessOrEqual(t, n, l.PerKey, key)
		}
	}
}

func (ref *reference) queuedBytes() (n int64) {
	for _, q := range ref.requests {
		if q.queue.ordinary {
			n += q.bytes
		}
	}
	return n
}

// rest ends all requests, and requires that nothing is left.
func (tw *twin) rest(t *rapid.T) {
	for _, q := range tw.ref.requests {
		tw.tell(q, Leave)
	}
	pass(time.Hour)
	tw.check(t)
	for _, q := range tw.ref.requests {
		require.Equal(t, Ended, q.w.Status().State)
	}
	tw.requireAtRest(t)
}

// TestMachineAgainstTheReference applies the same random events to both, and compares them
// after each.
func TestMachineAgainstTheReference(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rapid.SyncTest(t, func(t *rapid.T) {
			o := Options{
				Limits:   Limits{PerModel: 6, PerKey: 3, Total: 8, Bytes: 20, BytesPerModel: 12, QueueDepth: rapid.IntRange(0, 3).Draw(t, "depth")},
				Linger:   rapid.SampledFrom([]time.Duration{0, 30 * time.Second}).Draw(t, "linger"),
				Cooldown: rapid.SampledFrom([]time.Duration{0, time.Minute}).Draw(t, "cooldown"),
				InOrder:  rapid.Bool().Draw(t, "in order"),
			}
			tw := &twin{rig: newRig(o), ref: newReference(o)}
			if rapid.Bool().Draw(t, "gate") {
				budget := rapid.IntRange(1, 8).Draw(t, "budget")
				tw.slots.budgets[llama], tw.ref.budgets = budget, tw.slots.budgets
			}
			actions := map[string]func(*rapid.T){
				"hold": tw.hold, "hold 2": tw.hold, "hold 3": tw.hold, "queue": tw.queue, "queue 2": tw.queue, "hold again": tw.holdAgain,
				"say": tw.say, "back": tw.back, "done": tw.done, "done 2": tw.done,
				"up": tw.up, "grow": tw.grow, "grow 2": tw.grow, "down": tw.down, "push": tw.push, "fail": tw.fail,
				"want": tw.want, "drain": tw.drain, "end waits": tw.endWaits, "begin": tw.begin, "pass": tw.pass, "": tw.check,
			}
			for range 4 { // one round is about thirty actions
				t.Repeat(actions)
			}
			tw.rest(t)
		})
	})
}
