// SPDX-License-Identifier: Apache-2.0

package site

import (
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/valkey-io/valkey-go"

	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/polltest"
	"github.com/holdgate/holdgate/internal/shared"
	"github.com/holdgate/holdgate/internal/shared/valkeytest"
	"github.com/holdgate/holdgate/internal/target"
)

var chat = target.Target{Model: "m", Kind: target.Chat}

// asleep has no replicas.
type asleep struct{}

func (asleep) Serving(target.Target) bool { return false }

// router is a router of a site, of which only the waiters are there.
type router struct {
	client  *shared.Client
	machine *holdstate.Machine
	demand  *Demand

	mu      sync.Mutex
	changes []time.Time
}

func newRouter(server *valkeytest.Server) *router {
	r := &router{}
	r.client = server.Router(func(c *shared.Client) {
		r.demand = NewDemand(c, DemandOptions{
			Machine: func() *holdstate.Machine { return r.machine },
			OnChange: func(string) {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.changes = append(r.changes, time.Now())
			},
		})
		r.machine = holdstate.New(holdstate.Options{
			Limits: holdstate.Limits{PerModel: 10_000, PerKey: 10_000, Total: 10_000, Bytes: 1 << 30},
			Slots:  asleep{}, OnLevel: r.demand.Changed, OnLeft: r.demand.Left, PlaceOf: r.demand.PlaceOf,
		})
	})
	return r
}

// hold has a request wait on the router.
func (r *router) hold(t *testing.T, id string) *holdstate.Waiter {
	t.Helper()
	w, err := r.machine.Hold(holdstate.Request{Target: chat, Key: "k", ClientIDs: [2]string{id}})
	require.NoError(t, err)
	return w
}

func awaitDemand(t *testing.T, want int, routers ...*router) {
	t.Helper()
	for i, r := range routers {
		polltest.Until(t, fmt.Sprintf("router %d sees a demand of %d", i, want), func() bool { return r.demand.Demand("m") == want })
		require.Equal(t, r.demand.Wanted("m"), want > 0)
	}
}

func TestTheDemandOfASiteIsTheUnion(t *testing.T) {
	t.Parallel()
	server := valkeytest.Start(t)
	routers := []*router{newRouter(server), newRouter(server), newRouter(server)}
	one, two, three := routers[0], routers[1], routers[2]
	awaitDemand(t, 0, routers...)
	var all []*holdstate.Waiter
	for _, r := range routers {
		for range 1000 {
			all = append(all, r.hold(t, uuid.NewString()))
		}
	}
	held := time.Now()
	awaitDemand(t, 3000, routers...)
	t.Logf("known to all %v after the last of 3000 was held", time.Since(held))
	n := three.demand.Need("m")
	require.Equal(t, all[0].Status().Seq, uint64(n.Oldest.UnixNano()))
	require.Zero(t, n.Released)

	retried := uuid.NewString()
	first := one.hold(t, retried)
	awaitDemand(t, 3001, routers...)
	second := two.hold(t, retried)
	third := three.hold(t, retried)
	require.Equal(t, first.Status().Seq, second.Status().Seq, "it keeps its place")
	require.Equal(t, first.Status().Seq, third.Status().Seq)
	first.Report(holdstate.Leave)
	fourth := two.hold(t, uuid.NewString())
	awaitDemand(t, 3002, routers...) // when they see the fourth, they see all before
	second.Report(holdstate.Leave)
	third.Report(holdstate.Leave)
	awaitDemand(t, 3001, routers...)
	fourth.Report(holdstate.Leave)
	for _, w := range all {
		w.Report(holdstate.Leave)
	}
	awaitDemand(t, 0, routers...)
	late := newRouter(server)
	require.Zero(t, late.demand.Demand("m"))
	polltest.Until(t, "nothing of the requests is left", func() bool {
		for _, r := range routers {
			if len(r.demand.all()) > 0 {
				return false
			}
		}
		return true
	})
}

// TestARetryCountsOnceAtEveryMoment has requests go from router to router, and looks all the
// time.
func TestARetryCountsOnceAtEveryMoment(t *testing.T) {
	t.Parallel()
	server := valkeytest.Start(t)
	routers := []*router{newRouter(server), newRouter(server), newRouter(server)}
	const requests = 20
	ids, held := make([]string, requests), make([]*holdstate.Waiter, requests)
	for i := range ids {
		ids[i] = uuid.NewString()
		held[i] = routers[0].hold(t, ids[i])
	}
	awaitDemand(t, requests, routers...)
	for step := range 60 {
		r := routers[step%3]
		for i, id := range ids {
			old := held[i]
			held[i] = r.hold(t, id)
			require.LessOrEqual(t, r.demand.Demand("m"), requests)
			old.Report(holdstate.Leave)
		}
		for _, other := range routers {
			require.LessOrEqual(t, other.demand.Demand("m"), requests)
		}
		require.Equal(t, requests, r.demand.Demand("m"), "its own router sees each at once")
	}
	awaitDemand(t, requests, routers...)
	for _, w := range held {
		w.Report(holdstate.Leave)
	}
	awaitDemand(t, 0, routers...)
}

func TestAModelIsWantedOnAllRouters(t *testing.T) {
	t.Parallel()
	server := valkeytest.Start(t)
	one, two := newRouter(server), newRouter(server)
	one.machine.Want("m", 2*time.Second)
	polltest.Until(t, "the other router knows", func() bool { return two.demand.Wanted("m") })
	require.Zero(t, two.demand.Demand("m"))
	require.False(t, two.machine.Wanted("m"), "only the router with the need wakes")
	polltest.Until(t, "it ends", func() bool { return !two.demand.Wanted("m") })
	require.False(t, one.machine.Wanted("m"), "not before it ends on the router that wants it")
}

// TestAnEdgeIsKnownAtOnce measures from the hold on one router to the demand on another.
func TestAnEdgeIsKnownAtOnce(t *testing.T) { //nolint:paralleltest // it measures
	server := valkeytest.Start(t)
	one, two := newRouter(server), newRouter(server)
	// The message of an edge before the subscription is lost, and a beat makes it good.
	first := one.hold(t, uuid.NewString())
	awaitDemand(t, 1, two)
	first.Report(holdstate.Leave)
	awaitDemand(t, 0, two)
	var times []time.Duration
	const edges = 50
	for range edges {
		begin := time.Now()
		w := one.hold(t, uuid.NewString())
		polltest.Until(t, "the edge", func() bool {
			return two.demand.Demand("m") > 0
		})
		times = append(times, time.Since(begin))
		w.Report(holdstate.Leave)
		awaitDemand(t, 0, two)
	}
	slices.Sort(times)
	t.Logf("median %v, at worst %v", times[edges/2], times[edges-1])
	// It is 6 ms on an idle machine; this one may be busy, but a beat is slower.
	require.Less(t, times[edges/2], shared.Beat/4)
	two.mu.Lock()
	defer two.mu.Unlock()
	require.GreaterOrEqual(t, len(two.changes), 2*edges)
}

// writeAndDie writes the level of a router that died right after.
func writeAndDie(t *testing.T, r *router, l holdstate.Level) {
	t.Helper()
	do := func(build func(b valkey.Builder) valkey.Completed) {
		require.NoError(t, r.client.DoSlowly(t.Context(), "test", build).Error())
	}
	const ghost = "ghost"
	life := strconv.FormatInt(time.Now().Add(shared.Life).UnixMilli(), 10)
	score, err := strconv.ParseFloat(life, 64)
	require.NoError(t, err)
	do(func(b valkey.Builder) valkey.Completed {
		return b.Hset().Key(r.client.Key("demand", ghost)).FieldValue().FieldValue("", "1").FieldValue("m", encode(l, nil)).Build()
	})
	do(func(b valkey.Builder) valkey.Completed {
		return b.Zadd().Key(r.client.Key("routers")).ScoreMember().ScoreMember(score, ghost).Build()
	})
}

func TestWhatADeadRouterHeldCountsFor5s(t *testing.T) {
	t.Parallel()
	server := valkeytest.Start(t)
	one := newRouter(server)
	ids := make([]string, 100)
	var dead holdstate.Level
	elsewhere := holdstate.New(holdstate.Options{Limits: holdstate.Limits{PerModel: 100, PerKey: 100, Total: 100, Bytes: 1}, Slots: asleep{}})
	for i := range ids {
		ids[i] = uuid.NewString()
		_, err := elsewhere.Hold(holdstate.Request{Target: chat, Key: "k", ClientIDs: [2]string{ids[i]}})
		require.NoError(t, err)
	}
	dead = elsewhere.Level("m")
	place := map[uint64]uint64{}
	for _, s := range dead.Waiting {
		place[s.Identity] = s.Place
	}
	newcomer := one.hold(t, uuid.NewString())
	begin := time.Now()
	writeAndDie(t, one, dead)
	awaitDemand(t, 101, one)
	// Half of the clients come back while the level lives, the others after its end.
	var back []*holdstate.Waiter
	for _, id := range ids[:50] {
		back = append(back, one.hold(t, id))
		require.Equal(t, 101, one.demand.Demand("m"), "each counts once")
	}
	awaitDemand(t, 51, one)
	require.LessOrEqual(t, time.Since(begin), shared.Life+2*shared.Beat)
	for _, id := range ids[50:] {
		back = append(back, one.hold(t, id))
	}
	require.Equal(t, 101, one.demand.Demand("m"))
	level := one.machine.Level("m")
	for _, s := range level.Waiting {
		if old := place[s.Identity]; old != 0 {
			require.Equal(t, old, s.Place)
			delete(place, s.Identity)
		}
	}
	require.Empty(t, place)
	for i, w := range back {
		require.Less(t, w.Status().Seq, newcomer.Status().Seq, "%d came before", i)
		w.Report(holdstate.Leave)
	}
	newcomer.Report(holdstate.Leave)
}

func TestAPlaceOutlivesADrain(t *testing.T) {
	t.Parallel()
	server := valkeytest.Start(t)
	one, two := newRouter(server), newRouter(server)
	id := uuid.NewString()
	first := one.hold(t, id)
	newcomer := two.hold(t, uuid.NewString())
	awaitDemand(t, 2, two)
	one.machine.Drain()
	awaitDemand(t, 1, two) // and so knows that the place was left
	again := two.hold(t, id)
	require.Equal(t, first.Status().Seq, again.Status().Seq)
	require.Less(t, again.Status().Seq, newcomer.Status().Seq)
	again.Report(holdstate.Leave)
	require.Greater(t, two.hold(t, id).Status().Seq, newcomer.Status().Seq, "a place is taken over once")
	polltest.Until(t, "one tells of it no longer", func() bool { return len(one.demand.all()) == 0 })
	one.demand.mu.Lock()
	defer one.demand.mu.Unlock()
	require.Zero(t, one.demand.n)
	require.Empty(t, one.demand.left)
}

func TestASiteWithoutItsServerKnowsItsOwnDemand(t *testing.T) {
	t.Parallel()
	server := valkeytest.Start(t)
	one, two := newRouter(server), newRouter(server)
	one.hold(t, uuid.NewString())
	two.hold(t, uuid.NewString())
	awaitDemand(t, 2, one, two)
	server.Stop()
	stopped := time.Now()
	begin := time.Now()
	one.hold(t, uuid.NewString())
	two.hold(t, uuid.NewString())
	require.Less(t, time.Since(begin), time.Second, "nobody waits for the server")
	awaitDemand(t, 2, one, two) // its own two
	require.LessOrEqual(t, time.Since(stopped), shared.Life+2*shared.Beat)
	server.Restart()
	awaitDemand(t, 4, one, two)
}

func TestTheUseOfAModelIsKnownToAll(t *testing.T) {
	t.Parallel()
	server := valkeytest.Start(t)
	var mu sync.Mutex
	uses := map[string]Use{"m": {InFlight: 1, Idle: time.Hour}, "n": {Idle: time.Minute}}
	server.Router(func(c *shared.Client) {
		NewActivity(c, func() map[string]Use {
			mu.Lock()
			defer mu.Unlock()
			return map[string]Use{"m": uses["m"], "n": uses["n"]}
		})
	})
	var two *Activity
	server.Router(func(c *shared.Client) { two = NewActivity(c, func() map[string]Use { return nil }) })
	polltest.Until(t, "a request in flight", func() bool { return two.Used("m", time.Minute) })
	require.True(t, two.Used("n", 2*time.Minute))
	require.False(t, two.Used("n", time.Minute))
	require.False(t, two.Used("o", time.Hour))
	mu.Lock()
	uses["m"] = Use{Idle: time.Hour}
	mu.Unlock()
	polltest.Until(t, "its end", func() bool { return !two.Used("m", time.Minute) })
}

// BenchmarkPlaceOfAmongAThousand measures what a hold costs more, for each other router.
func BenchmarkPlaceOfAmongAThousand(b *testing.B) {
	l := holdstate.Level{}
	for i := range uint64(1000) {
		l.Waiting = append(l.Waiting, holdstate.Standing{Identity: i * 77, Place: i + 1})
	}
	text := encode(l, nil)
	b.ReportAllocs()
	for b.Loop() {
		l, ok := decode(text)
		if !ok || l.waiting.place(77*500) != 501 {
			b.Fatal("not found")
		}
	}
}

func BenchmarkEncodeAThousand(b *testing.B) {
	l := holdstate.Level{}
	for i := range uint64(1000) {
		l.Waiting = append(l.Waiting, holdstate.Standing{Identity: (i * 7919) % 1000, Place: i + 1})
	}
	b.ReportAllocs()
	for b.Loop() {
		encode(l, nil)
	}
}
