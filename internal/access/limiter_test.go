// SPDX-License-Identifier: Apache-2.0

package access

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// memoryLimiter is the state that routers share, in memory.
type memoryLimiter struct {
	now     time.Time
	buckets map[string]*limit
	routers int
	away    bool   // calls are not counted, and fail
	late    bool   // calls are counted, and their answers come later, if at all
	during  func() // is called while a call runs
	answers []func([]Left, error)
	lefts   [][]Left
}

var errAway = errors.New("away")

func newMemoryLimiter() *memoryLimiter {
	return &memoryLimiter{now: noon, buckets: map[string]*limit{}, routers: 3}
}

func (m *memoryLimiter) Routers() int { return m.routers }

func (m *memoryLimiter) Charge(key string, limits []Limit, answered func([]Left, error)) {
	left, err := m.run(key, limits, true)
	if m.late && !m.away {
		m.answers, m.lefts = append(m.answers, answered), append(m.lefts, left)
		return
	}
	if during := m.during; during != nil {
		m.during = nil
		during()
	}
	answered(left, err)
}

// answer ends the late calls: with their answers, or with errors.
func (m *memoryLimiter) answer(err error) {
	for i, answered := range m.answers {
		if err != nil {
			m.lefts[i] = nil
		}
		answered(m.lefts[i], err)
	}
	m.answers, m.lefts = nil, nil
}

func (m *memoryLimiter) Peek(key string, limits []Limit) ([]Left, error) {
	return m.run(key, limits, false)
}

func (m *memoryLimiter) run(key string, limits []Limit, charge bool) (left []Left, err error) {
	if m.away {
		return nil, errAway
	}
	ok := true
	var all []*bucket
	for _, asked := range limits {
		name := key + " " + asked.Model
		l := m.buckets[name]
		if l == nil {
			l = &limit{perReplica: asked.PerReplica}
			l.adapt(asked.Replicas, 1, m.now)
			l.part.tokens = min(l.part.tokens, asked.Expected)
			m.buckets[name] = l
		}
		l.adapt(asked.Replicas, 1, m.now)
		b := l.part
		b.add(-min(asked.Owed, b.left(m.now)), m.now)
		left = append(left, Left{Tokens: b.left(m.now), PerMinute: b.perMinute})
		ok = ok && b.left(m.now) >= 1
		if charge {
			l.part = b
		}
		all = append(all, &l.part)
	}
	for _, b := range all {
		if ok && charge {
			b.add(-1, m.now)
		}
	}
	return left, nil
}

// routersOf returns the key "a" as n routers know it.
func routersOf(t testing.TB, m *memoryLimiter, n int, file string) []*Key {
	t.Helper()
	keys := make([]*Key, n)
	for i := range keys {
		parsed := mustParse(t, file)
		parsed.share(m)
		keys[i] = parsed.ByID("a")
	}
	return keys
}

// inTurn charges n requests, to one router after the other, and returns how many were let in.
func inTurn(routers []*Key, n int, now time.Time) (admitted int) {
	for i := range n {
		if routers[i%len(routers)].Charge("llama", 1, now).OK {
			admitted++
		}
	}
	return admitted
}

func TestRoutersCountTogether(t *testing.T) {
	t.Parallel()
	m := newMemoryLimiter()
	routers := routersOf(t, m, 3, limitedFile(60, 40))
	require.Equal(t, Result{OK: true, Remaining: 39}, routers[0].Charge("llama", 1, noon), "of the tightest")
	require.Equal(t, Result{OK: true, Remaining: 38}, routers[1].Peek("llama", 1, noon))
	require.Equal(t, Result{OK: true, Remaining: 38}, routers[1].Charge("llama", 1, noon))
	require.Equal(t, 38, inTurn(routers, 100, noon))
	require.Equal(t, Result{RetryAfter: 2}, routers[2].Charge("llama", 1, noon))
	require.Equal(t, Result{RetryAfter: 2}, routers[2].Peek("llama", 1, noon))
	require.Equal(t, Result{OK: true, Remaining: 19}, routers[2].Charge("qwen", 1, noon), "both are charged or neither")
	require.Equal(t, unlimited, routersOf(t, m, 1, one("id: a", "quota: {}"))[0].Charge("llama", 1, noon))
}

// The bound of docs/many-routers.md: while the site cannot be asked, all routers together let
// in what it had left, and what its bucket gets meanwhile.
func TestAnOutageLetsInWhatTheSiteHadLeft(t *testing.T) {
	t.Parallel()
	m := newMemoryLimiter()
	routers := routersOf(t, m, 3, limitedFile(600, 0))
	require.Equal(t, 300, inTurn(routers, 300, noon))
	m.away = true
	require.Equal(t, 300, inTurn(routers, 1000, noon))
	m.now = noon.Add(6 * time.Second)
	require.Equal(t, 60, inTurn(routers, 1000, m.now), "6 s at 10 a second")

	m.away = false
	require.LessOrEqual(t, inTurn(routers, 1000, m.now), 2, "what was charged alone is charged to the site, when each router comes")
	m.now = m.now.Add(time.Second)
	require.Equal(t, 10, inTurn(routers, 1000, m.now))
}

// A router that dies takes its part with it; what it has charged alone is not told any more.
func TestARouterThatDiesInAnOutage(t *testing.T) {
	t.Parallel()
	m := newMemoryLimiter()
	routers := routersOf(t, m, 3, limitedFile(600, 0))
	require.Equal(t, 300, inTurn(routers, 300, noon))
	m.away = true
	require.Equal(t, 200, inTurn(routers[:2], 1000, noon), "the others keep their parts")
	require.Equal(t, 100, inTurn(routers[2:], 1000, noon))
	m.away, m.routers = false, 2
	require.Equal(t, 100, inTurn(routers[:2], 1000, noon), "no more than the part of the one that died")
	m.away, m.now = true, noon.Add(6*time.Second)
	require.Equal(t, 60, inTurn(routers[:2], 1000, m.now), "two routers have all")
}

// A router that has not asked for long expects as much as if nobody had.
func TestAnOutageLetsInAtMostOneBucketMore(t *testing.T) {
	t.Parallel()
	m := newMemoryLimiter()
	routers := routersOf(t, m, 3, limitedFile(600, 0))
	require.Equal(t, 2, inTurn(routers[1:], 2, noon))
	require.Equal(t, 598, inTurn(routers[:1], 1000, noon))
	m.away = true
	require.Equal(t, 199+199, inTurn(routers, 3000, noon))
	m.now = noon.Add(time.Hour)
	require.Equal(t, 600, inTurn(routers, 3000, m.now), "the parts are one bucket")
	m.away = false
	require.LessOrEqual(t, inTurn(routers, 1000, m.now), 2)
}

// The server is lost, and the one that takes its place is empty.
func TestALostServerBeginsWithWhatTheRoutersKnow(t *testing.T) {
	t.Parallel()
	m := newMemoryLimiter()
	routers := routersOf(t, m, 3, limitedFile(600, 0))
	require.Equal(t, 300, inTurn(routers, 300, noon))
	clear(m.buckets)
	require.Equal(t, 300+2, inTurn(routers, 1000, noon), "the first does not know of the last two requests of the others")
	clear(m.buckets)
	m.now = noon.Add(time.Second)
	require.Equal(t, 10, inTurn(routers, 1000, m.now))
	clear(m.buckets)
	require.Equal(t, 600, inTurn(routersOf(t, m, 1, limitedFile(600, 0)), 1000, m.now), "a new router knows nothing")
}

// A request whose answer is late was charged twice: the site has counted it, and the router
// alone. The answer says so, and then it counts once.
func TestALateAnswerIsCountedOnce(t *testing.T) {
	t.Parallel()
	m := newMemoryLimiter()
	routers := routersOf(t, m, 3, limitedFile(600, 0))
	require.Equal(t, 300, inTurn(routers, 300, noon))
	m.late = true
	require.Equal(t, 30, inTurn(routers, 30, noon))
	m.late = false
	m.answer(nil)
	require.Equal(t, 270, inTurn(routers, 1000, noon))

	m.now = noon.Add(time.Minute)
	require.Equal(t, 300, inTurn(routers, 300, m.now))
	m.late = true
	require.Equal(t, 30, inTurn(routers, 30, m.now))
	m.late = false
	require.Equal(t, 3, inTurn(routers, 3, m.now), "other answers come before")
	m.answer(nil)
	require.Equal(t, 267, inTurn(routers, 1000, m.now))
}

// Whether a request was counted whose answer never comes, nobody knows: it counts twice.
func TestAnAnswerThatNeverComesLetsInLess(t *testing.T) {
	t.Parallel()
	m := newMemoryLimiter()
	routers := routersOf(t, m, 3, limitedFile(600, 0))
	require.Equal(t, 300, inTurn(routers, 300, noon))
	m.late = true
	require.Equal(t, 30, inTurn(routers, 30, noon))
	m.late = false
	m.answer(errAway)
	require.Equal(t, 240, inTurn(routers, 1000, noon))
}

// Requests that a router charges alone while an answer is late are told afterwards.
func TestWhatIsChargedWhileAnAnswerIsLateIsTold(t *testing.T) {
	t.Parallel()
	m := newMemoryLimiter()
	routers := routersOf(t, m, 1, limitedFile(600, 0))
	require.Equal(t, 300, inTurn(routers, 300, noon))
	m.late = true
	require.Equal(t, 1, inTurn(routers, 1, noon))
	m.late, m.away = false, true
	require.Equal(t, 50, inTurn(routers, 50, noon))
	m.away = false
	m.answer(nil)
	require.Equal(t, 249, inTurn(routers, 1000, noon))
}

// A call is under way while others fail: what they charge is not forgotten when it is answered.
func TestWhatIsChargedWhileACallRunsIsTold(t *testing.T) {
	t.Parallel()
	m := newMemoryLimiter()
	routers := routersOf(t, m, 1, limitedFile(600, 0))
	require.Equal(t, 300, inTurn(routers, 300, noon))
	m.during = func() {
		m.away = true
		require.Equal(t, 50, inTurn(routers, 50, noon))
		m.away = false
	}
	require.Equal(t, 1, inTurn(routers, 1, noon))
	require.Equal(t, 249, inTurn(routers, 1000, noon))
}

// What a router charged alone is forgotten when its bucket would be full again.
func TestAFullBucketOwesNothing(t *testing.T) {
	t.Parallel()
	m := newMemoryLimiter()
	routers := routersOf(t, m, 3, limitedFile(600, 0))
	require.Equal(t, 3, inTurn(routers, 3, noon))
	m.away = true
	require.Equal(t, 100, inTurn(routers, 100, noon))
	m.away, m.now = false, noon.Add(time.Minute)
	require.Equal(t, Result{OK: true, Remaining: 599}, routers[0].Charge("llama", 1, m.now))
}

// A part below one token still lets a request in when it is full.
func TestASmallLimitIsDivided(t *testing.T) {
	t.Parallel()
	m := newMemoryLimiter()
	routers := routersOf(t, m, 3, limitedFile(1, 0))
	require.Equal(t, 1, inTurn(routers, 9, noon))
	m.away = true
	m.now = noon.Add(2 * time.Minute)
	require.LessOrEqual(t, inTurn(routers, 9, m.now), 3)
	m.now = m.now.Add(3 * time.Minute)
	require.Equal(t, 3, inTurn(routers, 9, m.now), "each router has the token of three minutes")
}

func TestALimitThatChangesInAnOutage(t *testing.T) {
	t.Parallel()
	m := newMemoryLimiter()
	before := mustParse(t, limitedFile(600, 0))
	before.share(m)
	require.Equal(t, 300, inTurn([]*Key{before.ByID("a")}, 300, noon))
	m.away = true
	after := mustParse(t, limitedFile(60, 0))
	after.share(m)
	after.takeOver(before, noon)
	k := []*Key{after.ByID("a")}
	require.Equal(t, 20, inTurn(k, 100, noon), "its part of the new limit")
	m.now = noon.Add(time.Minute)
	require.Equal(t, 20, inTurn(k, 100, m.now))
}

// TestNoHistoryLetsInMoreThanItsBound: whatever fails, all routers together let in at most a
// bucket and what it gets; and once more a bucket, and one request for each router, for each
// outage and each loss of the server.
func TestNoHistoryLetsInMoreThanItsBound(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		perMinute := rapid.IntRange(1, 60).Draw(rt, "per minute")
		m := newMemoryLimiter()
		routers := routersOf(t, m, 3, limitedFile(perMinute, 0))
		admitted, faults := 0, 0
		for range rapid.IntRange(1, 100).Draw(rt, "steps") {
			switch rapid.IntRange(0, 20).Draw(rt, "fault") {
			case 0:
				faults++
				m.away = true
			case 1, 2:
				m.away, m.late = false, false
			case 3:
				faults++
				m.late = true
			case 5, 6:
				m.answer(nil)
			case 7:
				m.answer(errAway)
			case 4:
				faults++
				clear(m.buckets)
			}
			m.now = m.now.Add(time.Duration(rapid.IntRange(0, 10_000).Draw(rt, "ms")) * time.Millisecond)
			router := rapid.IntRange(0, 2).Draw(rt, "router")
			admitted += inTurn(routers[router:router+1], rapid.IntRange(1, 20).Draw(rt, "requests"), m.now)
			bound := float64(perMinute)*(1+m.now.Sub(noon).Minutes()) + float64(faults*(perMinute+3))
			require.LessOrEqual(rt, float64(admitted), bound+1e-6)
		}
	})
}
