// SPDX-License-Identifier: Apache-2.0

package holdstate

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/holdgate/holdgate/internal/target"
)

// reference tells the rules of a machine in the plainest way: one slice of all
// requests, counted anew at every question.
type reference struct {
	o        Options
	requests []*refRequest
	replicas map[target.Target][]*refReplica
	turns    map[refQueue][]string // keys that wait, the next in front

	seq         uint64
	draining    bool
	ending      bool
	unplaced    map[target.Target]bool
	failedUntil map[string]time.Time
	failure     map[string]string
	wantedUntil map[string]time.Time

	wakes map[string]wake            // those that run
	woke  map[string][]time.Duration // those that ended with a replica

	outcomes map[Outcome]int
	held     []time.Duration
	grants   map[*refGrant]bool
	budgets  map[target.Target]int // of the gates; none: no gate
	cameBack bool                  // a granted request entered again, which no limit refuses
}

type refQueue struct {
	target   target.Target
	ordinary bool
}

type refReplica struct {
	free int
	real *fakeReplica
}

// refGrant is a slot that was granted and not given back, with what it has reserved.
type refGrant struct {
	target target.Target
	weight int
}

// refRequest is a request, with the waiter that should behave like it.
type refRequest struct {
	queue            refQueue
	key, turn, id    string
	seq              uint64
	bytes            int64
	weight           int // in the gate
	grant            *refGrant
	state            State
	outcome          Outcome
	reason           string
	err              error
	slot             *refReplica
	begun            bool // its answer
	joined, released time.Time
	left             time.Time // the queue
	w                *Waiter
}

func newReference(o Options) *reference {
	return &reference{
		o: o, replicas: map[target.Target][]*refReplica{}, turns: map[refQueue][]string{},
		unplaced: map[target.Target]bool{}, outcomes: map[Outcome]int{},
		failedUntil: map[string]time.Time{}, failure: map[string]string{}, wantedUntil: map[string]time.Time{},
		grants: map[*refGrant]bool{}, wakes: map[string]wake{}, woke: map[string][]time.Duration{},
	}
}

func (q *refRequest) waits() bool {
	return q.state == Held || q.state == Released || q.state == Admitted
}
func (q *refRequest) placed() bool { return q.waits() && !q.queue.ordinary }

// waited is how long q was held, and then waited for its slot.
func (q *refRequest) waited() (held, queued time.Duration) {
	until := q.left
	if q.waits() {
		until = time.Now()
	}
	if q.state == Held || q.released.IsZero() {
		return until.Sub(q.joined), 0
	}
	return q.released.Sub(q.joined), until.Sub(q.released)
}

func (ref *reference) count(is func(*refRequest) bool) int {
	n := 0
	for _, q := range ref.requests {
		if is(q) {
			n++
		}
	}
	return n
}

func (ref *reference) bytesOf(model string) (n int64) {
	for _, q := range ref.requests {
		if q.queue.target.Model == model {
			n += q.bytes
		}
	}
	return n
}

func (ref *reference) bytes() (n int64) {
	for _, q := range ref.requests {
		n += q.bytes
	}
	return n
}

func (ref *reference) heldOf(model string) int {
	return ref.count(func(q *refRequest) bool { return q.placed() && q.queue.target.Model == model })
}

func (ref *reference) heldBy(key, model string) int {
	return ref.count(func(q *refRequest) bool { return q.placed() && q.queue.target.Model == model && q.key == key })
}

func (ref *reference) demand(model string) int {
	ids := map[string]bool{}
	for _, q := range ref.requests {
		if q.placed() && q.queue.target.Model == model {
			ids[q.id] = true
		}
	}
	return len(ids)
}

func (ref *reference) wanted(model string) bool {
	return ref.demand(model) > 0 || time.Now().Before(ref.wantedUntil[model])
}

func (ref *reference) want(model string, d time.Duration) {
	if until := time.Now().Add(d); until.After(ref.wantedUntil[model]) {
		ref.wantedUntil[model] = until
	}
}

// retryAfter returns the least and the highest Retry-After.
func (ref *reference) retryAfter(model string) (least, most int) {
	all := ref.woke[model]
	if len(all) < 3 {
		return 30, 30
	}
	last := slices.Sorted(slices.Values(all[max(0, len(all)-20):]))
	rank := int(math.Ceil(float64(len(last)) * 0.9))
	left := last[rank-1]
	if w := ref.wakes[model]; w.running {
		left -= time.Since(w.since)
	}
	most = int(max(1, min(60, math.Ceil(left.Seconds()))))
	return most - most/10, most
}

// refuses says why a request may not be held, empty when it may.
func (ref *reference) refuses(r Request) string {
	l, model := ref.o.Limits, r.Target.Model
	switch {
	case ref.draining:
		return ErrDraining.Error()
	case time.Now().Before(ref.failedUntil[model]):
		return "the wake failed: " + ref.failure[model]
	case ref.heldOf(model)+1 > l.PerModel,
		r.Key != "" && ref.heldBy(r.Key, model)+1 > l.PerKey,
		ref.count((*refRequest).placed)+1 > l.Total,
		ref.bytes()+r.Bytes > l.Bytes,
		r.Bytes > 0 && ref.bytesOf(model)+r.Bytes > l.BytesPerModel:
		ref.outcomes[OutcomeFull]++
		ref.held = append(ref.held, 0)
		return ErrFull.Error()
	}
	return ""
}

func (ref *reference) refusesQueue(r Request) string {
	queued := ref.count(func(q *refRequest) bool { return q.waits() && q.queue == refQueue{r.Target, true} })
	switch {
	case ref.draining:
		return ErrDraining.Error()
	case ref.o.Limits.QueueDepth > 0 && queued >= ref.o.Limits.QueueDepth:
		return ErrNoQueue.Error()
	}
	return ""
}

func (ref *reference) arrive(r Request, ordinary bool) *refRequest {
	q := &refRequest{
		queue: refQueue{r.Target, ordinary}, key: r.Key, turn: r.Key, seq: r.Seq, bytes: r.Bytes, joined: time.Now(),
		id: fmt.Sprintf("alone %d", len(ref.requests)), weight: weightOf(r),
	}
	if r.ClientIDs[0] != "" {
		q.id = r.Key + " " + strings.ToLower(r.ClientIDs[0])
	}
	if ref.o.InOrder {
		q.turn = ""
	}
	if q.seq == 0 {
		ref.seq = max(ref.seq+1, uint64(q.joined.UnixNano()))
		q.seq = ref.seq
	}
	if ordinary {
		q.state, q.released = Released, q.joined
	}
	ref.requests = append(ref.requests, q)
	model := r.Target.Model
	if q.placed() && r.Seq == 0 && ref.heldOf(model) == 1 && len(ref.replicas[r.Target]) == 0 && !ref.wakes[model].running {
		ref.wakes[model] = wake{running: true, target: r.Target, since: time.Now()}
	}
	ref.enter(q)
	return q
}

// enter puts q in its queue and updates its target.
func (ref *reference) enter(q *refRequest) {
	if !slices.Contains(ref.turns[q.queue], q.turn) {
		ref.turns[q.queue] = append(ref.turns[q.queue], q.turn)
	}
	ref.update(q.queue.target)
}

// quit is a request whose state says that it waits no more.
func (ref *reference) quit(q *refRequest) {
	q.left = time.Now()
	if ref.count(func(o *refRequest) bool { return o.waits() && o.queue == q.queue && o.turn == q.turn }) == 0 {
		ref.turns[q.queue] = slices.DeleteFunc(ref.turns[q.queue], func(key string) bool { return key == q.turn })
	}
}

func (ref *reference) end(q *refRequest, o Outcome) {
	was := q.state
	q.state, q.outcome, q.bytes = Ended, o, 0
	if was != Granted {
		ref.quit(q)
	}
	if q.queue.ordinary {
		return
	}
	until := time.Now()
	if !q.released.IsZero() {
		until = q.released
	}
	ref.outcomes[o]++
	ref.held = append(ref.held, until.Sub(q.joined))
	if o == OutcomeExpired || o == OutcomeDisconnected || o == OutcomeDraining {
		ref.want(q.queue.target.Model, ref.o.Linger)
	}
}

// update releases or holds the waiters of a target, and gives out its slots.
func (ref *reference) update(t target.Target) {
	if w := ref.wakes[t.Model]; w.running && w.target == t && len(ref.replicas[t]) > 0 {
		delete(ref.wakes, t.Model)
		if took := time.Since(w.since); took >= minWake {
			ref.woke[t.Model] = append(ref.woke[t.Model], took)
		}
	}
	for _, q := range ref.requests {
		serving := len(ref.replicas[t]) > 0
		switch {
		case q.queue.target != t || !q.waits():
		case serving && q.state == Held:
			q.state, q.released = Released, time.Now()
		case !serving && q.queue.ordinary:
			ref.end(q, Pending)
		case !serving && q.state != Held:
			q.state, q.released = Held, time.Time{}
			ref.outlived(q)
		}
	}
	if len(ref.replicas[t]) == 0 {
		return
	}
	ref.admit(t)
	ref.give(t)
	if ref.o.Limits.QueueDepth > 0 {
		return
	}
	turnedAway := ref.inTurn(t, Admitted)
	for _, q := range turnedAway {
		q.err = ErrNoQueue
		ref.end(q, OutcomeReleased)
	}
	if len(turnedAway) > 0 {
		ref.update(t) // others may get what they had reserved
	}
}

// admit lets those through the gate that fit, until one does not.
func (ref *reference) admit(t target.Target) {
	budget, gated := ref.budgets[t]
	behind := false
	for _, q := range ref.inTurn(t, Released) {
		used := 0
		for _, o := range ref.inTurn(t, Admitted) {
			used += o.weight
		}
		for g := range ref.grants {
			if g.target == t {
				used += g.weight
			}
		}
		switch {
		case gated && q.weight > budget:
			q.err = errTooLarge
			ref.end(q, OutcomeReleased)
		case behind || gated && used+q.weight > budget:
			behind = true
		default:
			q.state = Admitted
		}
	}
}

// give gives out the slots.
func (ref *reference) give(t target.Target) {
	for _, r := range ref.replicas[t] {
		for r.free > 0 {
			of := ref.inTurn(t, Admitted)
			if len(of) == 0 {
				return
			}
			q := of[0]
			r.free--
			q.state, q.slot, q.grant = Granted, r, &refGrant{t, q.weight}
			ref.grants[q.grant] = true
			turns := slices.DeleteFunc(slices.Clone(ref.turns[q.queue]), func(key string) bool { return key == q.turn })
			ref.turns[q.queue] = append(turns, q.turn)
			ref.quit(q)
		}
	}
}

// inTurn lists the waiters in a state, in the order in which slots are theirs.
func (ref *reference) inTurn(t target.Target, state State) (list []*refRequest) {
	for _, queue := range []refQueue{{t, false}, {t, true}} {
		var keys [][]*refRequest
		rounds := 0
		for _, turn := range ref.turns[queue] {
			var of []*refRequest
			for _, q := range ref.requests {
				if q.waits() && q.queue == queue && q.turn == turn {
					of = append(of, q)
				}
			}
			slices.SortStableFunc(of, func(a, b *refRequest) int { return cmp.Compare(a.seq, b.seq) })
			keys, rounds = append(keys, of), max(rounds, len(of))
		}
		for i := range rounds {
			for _, of := range keys {
				if i < len(of) && of[i].state == state {
					list = append(list, of[i])
				}
			}
		}
	}
	return list
}

func (ref *reference) mustDrain(q *refRequest) bool {
	return ref.ending || ref.draining && !q.begun
}

// drain ends the requests that a drain ends. Those that are left get what these had reserved, or
// their turn.
func (ref *reference) drain() {
	freed := map[target.Target]bool{}
	for _, q := range ref.requests {
		if ref.mustDrain(q) && (q.state == Released || q.state == Admitted) {
			freed[q.queue.target] = true
		}
	}
	ref.endAll(OutcomeDraining, "", ref.mustDrain)
	for t := range freed {
		ref.update(t)
	}
}

// outlived ends a request that is held again although holds are no longer allowed.
func (ref *reference) outlived(q *refRequest) {
	switch {
	case q.waits() && ref.mustDrain(q):
		ref.end(q, OutcomeDraining)
	case ref.unplaced[q.queue.target] && q.state == Held:
		ref.end(q, OutcomeRemoved)
	}
}

// tell is what a caller may say of its request.
func (ref *reference) tell(q *refRequest, e Event) {
	inGate := q.state == Released || q.state == Admitted
	defer func() {
		if inGate {
			ref.update(q.queue.target) // others may get what it had reserved, or its turn
		}
	}()
	switch {
	case e == Expire && q.state == Held:
		ref.end(q, OutcomeExpired)
	case e == Expire && q.state == Released:
		q.err = ErrGateFull
		ref.end(q, OutcomeReleased)
	case e == TimeOut && q.state == Admitted:
		q.err = ErrTimeout
		ref.end(q, OutcomeReleased)
	case e == Leave && q.waits():
		ref.end(q, OutcomeDisconnected)
	case (e == Leave || e == Done) && q.state == Granted:
		ref.end(q, OutcomeReleased)
	case e == Back && q.state == Granted && q.queue.ordinary:
		ref.end(q, Pending)
	case e == Back && q.state == Granted:
		q.state, q.slot, q.released = Held, nil, time.Time{}
		ref.cameBack = true
		ref.enter(q)
		ref.outlived(q)
	}
}

// endAll ends those that are meant.
func (ref *reference) endAll(o Outcome, reason string, meant func(*refRequest) bool) {
	for _, q := range ref.requests {
		if q.waits() && meant(q) {
			q.reason = reason
			ref.end(q, o)
		}
	}
}
