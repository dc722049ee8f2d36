// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/agentreg/agentregtest"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/access"
	"github.com/holdgate/holdgate/internal/admission"
)

// livesPolicies are the versions of the policy file.
var livesPolicies = []string{
	"{}",
	"{max_inflight: 2}",
	"{max_inflight: 3, admit_budget_tokens: 40, steps: [{name: near, match: {region: eu}, max_tries: 1}, {name: any}]}",
	"{admit_budget_tokens: 60, steps: [{name: near, match: {region: eu}}, {name: far, match: {region: us}, max_tries: 2}]}",
	"{steps: [{name: any, max_tries: 2}]}",
}

// guest is a request, which the test brings to its end as a stream would.
type guest struct {
	call    *call
	waiter  *holdstate.Waiter
	relayed bool // its waiter lives until the engine has answered
	grant   holdstate.Grant
	seq     uint64
	died    bool // a replica died under it, and may have to be left alone
}

// life applies random events to the requests, the replicas and the policy of a model.
type life struct {
	*rig
	rand     *rand.Rand
	guests   []*guest
	agents   map[string]*agentregtest.Agent
	reloaded bool
	changed  bool // the policy, less than a second ago
	queue    bool
}

// decide gets a new decision on a guest.
func (l *life) decide(g *guest) {
	q := chat("m")
	q.Seq = g.seq
	d := g.call.Decide(q)
	if g.grant != nil || g.seq != 0 {
		require.False(l.t, d.Refusal != nil && d.Refusal.Status == http.StatusTooManyRequests, "it was admitted before")
	}
	g.waiter, g.grant, g.relayed = d.Waiter, d.Grant, d.Held && l.rand.IntN(2) == 0
}

// look does what streams do when their waiter has changed, until nothing changes.
func (l *life) look() {
	for again := true; again; {
		again = false
		synctest.Wait()
		for _, g := range l.guests {
			again = l.follow(g) || again
		}
		l.guests = slices.DeleteFunc(l.guests, func(g *guest) bool { return g.waiter == nil && g.grant == nil })
	}
}

func (l *life) follow(g *guest) (changed bool) {
	if g.waiter == nil || g.grant != nil {
		return false
	}
	switch s := g.waiter.Status(); s.State {
	case holdstate.Granted:
		g.grant, g.seq = s.Grant, s.Seq
		if !g.relayed {
			g.waiter.Report(holdstate.Done)
			g.waiter = nil
		}
	case holdstate.Ended:
		g.waiter, g.seq = nil, s.Seq
		if s.Outcome == holdstate.Pending {
			l.decide(g) // its last replica left before it was held
		}
	default:
		return false
	}
	return true
}

// ends lets the engine of a guest answer, or fail.
func (l *life) ends(g *guest, failed bool) {
	grant := g.grant
	if failed {
		died := l.rand.IntN(2) == 0
		g.died = g.died || died
		grant.Failed("it was a test", died)
	}
	switch {
	case g.waiter != nil && failed:
		grant.Release()
		g.grant = nil
		g.waiter.Report(holdstate.Back)
	case failed:
		grant.Release()
		l.decide(g)
	default:
		if g.waiter != nil {
			g.waiter.Report(holdstate.Done)
		}
		grant.Release()
		g.waiter, g.grant = nil, nil
	}
}

// gives ends a guest's wait, or its patience with this part of it.
func (l *life) gives(g *guest, leaves bool) {
	s := g.waiter.Status()
	switch {
	case leaves:
		s = g.waiter.Report(holdstate.Leave)
	case s.State == holdstate.Held:
		s = g.waiter.Report(holdstate.Expire)
	case s.State != holdstate.Granted:
		s = g.waiter.Report(holdstate.TimeOut)
	}
	if leaves && s.Grant != nil {
		s.Grant.Release()
		g.waiter = nil
	}
}

// step is one thing that happens.
func (l *life) step() {
	id := string(rune('a' + l.rand.IntN(4)))
	g := &guest{}
	if len(l.guests) > 0 {
		g = l.guests[l.rand.IntN(len(l.guests))]
	}
	switch n := l.rand.IntN(100); {
	case n < 30:
		key := &access.Key{ID: fmt.Sprint("k", l.rand.IntN(3)), Share: []float64{0.5, 1}[l.rand.IntN(2)]}
		call := &call{d: l.Decider, key: key}
		call.attempts = l.o.Capacity.Attempts(chatOfM, key, l.rand.Int64N(45))
		g = &guest{call: call}
		l.decide(g)
		l.guests = append(l.guests, g)
	case n < 65 && g.grant != nil:
		l.ends(g, n < 40)
	case n < 75 && g.waiter != nil && g.grant == nil:
		l.gives(g, n < 66)
	case n < 82 && l.agents[id] == nil:
		l.agents[id] = l.join(id, []string{"eu", "us"}[l.rand.IntN(2)], l.rand.Uint32N(3)+1, "m")
	case n < 85 && l.agents[id] != nil:
		l.agents[id].Leave()
		delete(l.agents, id)
	case n < 92 && l.agents[id] != nil:
		l.agents[id].Report(pb.State_STATE_SERVING)
	case n < 93:
		l.reload(livesPolicies[l.rand.IntN(len(livesPolicies))])
	}
	l.look()
}

func (l *life) reload(text string) {
	l.setPolicy("m: " + text)
	l.reloaded, l.changed = true, true
}

// recheckWaiters tells the machine each second of policies that may have changed.
func (r *rig) recheckWaiters() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			r.o.Machine.UpdateAll()
		case <-r.ctx.Done():
			return
		}
	}
}

// look returns whether the gate has room and whether a slot is free; the error says that
// there never is room.
func look(a *admission.Attempts) (room, slot bool, err error) {
	claim := a.DryRun()
	reservation, err := claim.Admit(false)
	if err != nil {
		return false, false, err
	}
	_, result := claim.Take(reservation)
	return reservation != nil, result == holdstate.Taken, nil
}

// check requires that no request waits for something that is free, and that all counts are
// right.
func (l *life) check() {
	second := l.changed || l.rand.IntN(2) == 0
	if second {
		pass(time.Second)
		l.look()
		l.changed = false
	}
	var requests, tokens int64
	allFit, released := true, 0
	for _, g := range l.guests {
		state := holdstate.Granted
		if g.grant == nil {
			state = g.waiter.Status().State
		}
		room, slot, err := look(&g.call.attempts)
		switch state { //nolint:exhaustive // the others have a slot, or are no guests any more
		case holdstate.Held:
			require.Zero(l.t, l.o.Registry.Serving(chatOfM), "held though it is served")
			continue
		case holdstate.Released:
			require.False(l.t, second && err != nil, "it can have no room: %v", err)
			released++
			allFit = allFit && room
			continue
		case holdstate.Admitted:
			require.True(l.t, l.queue || g.died, "nobody waits for a slot")
			require.False(l.t, err == nil && slot, "a slot is free that it may have")
		}
		requests++
		tokens += g.call.attempts.Tokens
	}
	require.False(l.t, released > 0 && allFit, "there is room for all who wait for it")
	for _, load := range l.o.Capacity.Loads() {
		if !l.reloaded {
			require.Equal(l.t, []int64{requests, tokens}, []int64{load.Requests, load.Tokens})
		}
	}
}

// TestLives applies random events to a model: requests arrive, leave, time out, fail and
// are tried again; replicas join, leave and recover; policies change.
func TestLives(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		s := setup{policy: "m: " + livesPolicies[seed%5], placements: rigMap, limits: holdstate.Limits{QueueDepth: []int{0, 3}[seed/5%2]}}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, s, func(r *rig) {
				go r.recheckWaiters()
				l := &life{rig: r, rand: rand.New(rand.NewPCG(seed, 1)), agents: map[string]*agentregtest.Agent{}, queue: s.limits.QueueDepth > 0}
				for n := range 150 {
					l.step()
					if n%5 == 0 {
						l.check()
					}
				}
				l.rest()
			})
		})
	}
}

// rest ends all guests, and requires that nothing is left of them.
func (l *life) rest() {
	for len(l.guests) > 0 {
		for _, g := range slices.Clone(l.guests) {
			switch {
			case g.grant != nil:
				l.ends(g, false)
			case g.waiter != nil:
				l.gives(g, true)
			}
		}
		l.look()
	}
	for _, load := range l.o.Capacity.Loads() {
		require.Zero(l.t, load.Requests+load.Tokens)
	}
	c := l.o.Registry.Capacity(chatOfM)
	require.Equal(l.t, c.Slots, c.Free)
	require.False(l.t, l.o.Machine.Waiting(chatOfM))
	for _, p := range l.agents {
		p.Leave()
	}
	synctest.Wait()
}
