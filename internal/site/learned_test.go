// SPDX-License-Identifier: Apache-2.0

package site

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/valkey-io/valkey-go"

	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/polltest"
	"github.com/holdgate/holdgate/internal/shared"
	"github.com/holdgate/holdgate/internal/shared/valkeytest"
)

// learner is a router that measures wakes.
type learner struct {
	client  *shared.Client
	machine *holdstate.Machine
	learned *Learned
}

func newLearner(server *valkeytest.Server) *learner {
	r := &learner{machine: holdstate.New(holdstate.Options{Slots: asleep{}})}
	r.client = server.Router(func(c *shared.Client) { r.learned = NewLearned(c, func() Times { return r.machine }) })
	return r
}

// wake is a wake that the router measures.
func (r *learner) wake(model string, took time.Duration) {
	r.machine.SetTimes(model, append(r.machine.Times(model), took))
	r.learned.Woke(model, took)
}

func awaitTimes(t *testing.T, model string, want []time.Duration, routers ...*learner) {
	t.Helper()
	for i, r := range routers {
		polltest.Until(t, fmt.Sprintf("router %d knows %v", i, want), func() bool { return slices.Equal(r.machine.Times(model), want) })
	}
}

// age makes the last wake of a model one that ended a minute ago.
func (r *learner) age(t *testing.T, model string) {
	t.Helper()
	key := r.learned.key()
	list := timesText(r.machine.Times(model))
	require.NoError(t, r.client.DoSlowly(t.Context(), "test", func(b valkey.Builder) valkey.Completed {
		return b.Hset().Key(key).FieldValue().FieldValue(model, fmt.Sprintf("%d %s", time.Now().Add(-time.Minute).UnixMilli(), list)).Build()
	}).Error())
}

func TestTheRoutersLearnTogether(t *testing.T) {
	t.Parallel()
	server := valkeytest.Start(t)
	one, two := newLearner(server), newLearner(server)
	one.wake("m", 3*time.Second)
	awaitTimes(t, "m", []time.Duration{3 * time.Second}, one, two)
	two.wake("m", 4*time.Second) // the same wake, for which this router waited longer
	awaitTimes(t, "m", []time.Duration{4 * time.Second}, one, two)
	one.wake("m", 2*time.Second)
	awaitTimes(t, "m", []time.Duration{4 * time.Second}, one, two)
	want := []time.Duration{4 * time.Second}
	for i := range 2 * timesKept {
		one.age(t, "m")
		took := time.Duration(i+5) * time.Second
		[]*learner{one, two}[i%2].wake("m", took)
		want = append(want, took)
		want = want[max(0, len(want)-timesKept):]
		awaitTimes(t, "m", want, one, two)
	}
	name := "7 a model\n with words"
	two.wake(name, 1500*time.Millisecond)
	awaitTimes(t, name, []time.Duration{1500 * time.Millisecond}, one, two)
	late := newLearner(server)
	awaitTimes(t, "m", want, late)
	awaitTimes(t, name, []time.Duration{1500 * time.Millisecond}, late)
	for _, r := range []*learner{one, two, late} {
		seconds, learned := r.machine.Learned("m")
		require.True(t, learned)
		require.InDelta(t, 40, seconds, 5)
	}
}

func TestAWakeThatManyMeasureCountsOnce(t *testing.T) {
	t.Parallel()
	server := valkeytest.Start(t)
	routers := []*learner{newLearner(server), newLearner(server), newLearner(server)}
	var all sync.WaitGroup
	for i, r := range routers {
		all.Go(func() { r.wake("m", time.Duration(i+1)*time.Second) })
	}
	all.Wait()
	awaitTimes(t, "m", []time.Duration{3 * time.Second}, routers...)
}

func TestAnEmptyServerGetsTheTimesOfARouter(t *testing.T) {
	t.Parallel()
	server := valkeytest.Start(t)
	one, two := newLearner(server), newLearner(server)
	old := []time.Duration{time.Second, 2 * time.Second, 3 * time.Second}
	one.machine.SetTimes("m", old)
	one.wake("m", 4*time.Second)
	awaitTimes(t, "m", append(old, 4*time.Second), one, two)
}

func TestTimesWhoseMessageIsLostAreRead(t *testing.T) {
	t.Parallel()
	server := valkeytest.Start(t)
	one, two := newLearner(server), newLearner(server)
	one.wake("m", time.Second)
	awaitTimes(t, "m", []time.Duration{time.Second}, one, two)
	two.machine.SetTimes("m", nil)
	key := two.learned.key()
	require.NoError(t, one.client.DoSlowly(t.Context(), "test", func(b valkey.Builder) valkey.Completed {
		return b.Hincrby().Key(key).Field("").Increment(1).Build()
	}).Error())
	awaitTimes(t, "m", []time.Duration{time.Second}, two)
}

func TestWithoutTheServerARouterLearnsAlone(t *testing.T) {
	t.Parallel()
	server := valkeytest.Start(t)
	one, two := newLearner(server), newLearner(server)
	server.Stop()
	polltest.Until(t, "the server is missed", func() bool { return !one.client.Up() && !two.client.Up() })
	one.wake("m", time.Second)
	awaitTimes(t, "m", []time.Duration{time.Second}, one)
	require.Empty(t, two.machine.Times("m"))
}

func TestTheTimesOfManyModelsAreBounded(t *testing.T) {
	t.Parallel()
	server := valkeytest.Start(t)
	one := newLearner(server)
	fields := func() (n int64) {
		n, err := one.client.DoSlowly(t.Context(), "test", func(b valkey.Builder) valkey.Completed {
			return b.Hlen().Key(one.learned.key()).Build()
		}).AsInt64()
		require.NoError(t, err)
		return n
	}
	add := func(model string) {
		require.NoError(t, addTime.RunSlowly(t.Context(), one.client, []string{one.learned.key(), one.client.Key("times")},
			[]string{model, "1000", "1000", "60000", "5000", "20", "3"}).Error())
	}
	for i, model := range []string{"a", "b", "c"} {
		add(model)
		awaitTimes(t, model, []time.Duration{time.Second}, one)
		require.Equal(t, int64(i+2), fields())
	}
	one.age(t, "b")
	add("d")
	require.Equal(t, int64(4), fields())
	add("a")
	require.Equal(t, int64(4), fields(), "one that is there takes no place")
	kept, err := one.client.DoSlowly(t.Context(), "test", func(b valkey.Builder) valkey.Completed {
		return b.Hkeys().Key(one.learned.key()).Build()
	}).AsStrSlice()
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"", "a", "c", "d"}, kept, "the one that woke the longest ago is gone")
}

func TestOnlyListsOfTimesAreRead(t *testing.T) {
	t.Parallel()
	machine := holdstate.New(holdstate.Options{Slots: asleep{}})
	l := &Learned{times: func() Times { return machine }}
	for _, bad := range []string{"", "1", "1 m", "2 m", "-1 m1", "1 mx", "1 m-1", "1 m5 x", "1 m99999999999", "1 m1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21"} {
		l.receive(bad)
		require.Empty(t, machine.Times("m"), "%q", bad)
	}
	l.receive("1 m5 6")
	require.Equal(t, []time.Duration{5 * time.Millisecond, 6 * time.Millisecond}, machine.Times("m"))
}
