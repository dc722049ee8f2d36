// SPDX-License-Identifier: Apache-2.0

package access

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// limited gives the key "a" with a limit over all models, and one for the model
// llama for each replica. 0 is none.
func limited(t testing.TB, all, llama int) *Key {
	t.Helper()
	return mustParse(t, limitedFile(all, llama)).ByID("a")
}

func limitedFile(all, llama int) string {
	quota := "quota: {"
	if all > 0 {
		quota += fmt.Sprintf("requests_per_minute: %d, ", all)
	}
	if llama > 0 {
		quota += fmt.Sprintf("per_model: {llama: {requests_per_minute_per_replica: %d}}", llama)
	}
	return one("id: a", quota+"}")
}

// spend charges until it is refused, and gives how often it was not.
func spend(k *Key, model string, replicas int, now time.Time) int {
	n := 0
	for k.Charge(model, replicas, now).OK {
		n++
	}
	return n
}

func TestABucketHoldsOneMinute(t *testing.T) {
	t.Parallel()
	k := limited(t, 6, 0)
	for left := 5; left >= 0; left-- {
		require.Equal(t, Result{OK: true, Remaining: left}, k.Charge("any", 1, noon))
	}
	refused := Result{RetryAfter: 10}
	require.Equal(t, refused, k.Charge("any", 1, noon))
	require.Equal(t, refused, k.Charge("other", 0, noon), "all models together")
	require.Equal(t, Result{RetryAfter: 1}, k.Charge("any", 1, noon.Add(9900*time.Millisecond)))
	require.Equal(t, Result{OK: true}, k.Charge("any", 1, noon.Add(10*time.Second)), "refusals cost nothing")
	require.Equal(t, 6, spend(k, "any", 1, noon.Add(time.Hour)), "never more than a minute's")
}

func TestTheLimitOfAModelGrowsWithItsReplicas(t *testing.T) {
	t.Parallel()
	require.Equal(t, 10, spend(limited(t, 0, 10), "llama", 1, noon))
	require.Equal(t, 40, spend(limited(t, 0, 10), "llama", 4, noon))

	k := limited(t, 0, 10)
	require.Equal(t, Result{OK: true, Remaining: Unlimited}, k.Charge("llama", 0, noon), "skipped without replicas")
	require.Equal(t, Result{OK: true, Remaining: Unlimited}, k.Charge("llama", -1, noon))
	require.Equal(t, Result{OK: true, Remaining: Unlimited}, k.Charge("qwen", 1, noon))
	require.Equal(t, 10, spend(k, "llama", 1, noon))
	require.Equal(t, 20, spend(k, "llama", 3, noon), "the new replicas bring their tokens")
	require.Equal(t, Result{RetryAfter: 2}, k.Charge("llama", 3, noon), "and fill the bucket faster")
	require.Equal(t, 30, spend(k, "llama", 3, noon.Add(time.Minute)))
	require.Equal(t, 30, spend(k, "llama", 3, noon.Add(2*time.Minute)))
	require.Equal(t, 10, spend(k, "llama", 1, noon.Add(4*time.Minute)), "what is over the smaller limit is gone")
}

// A replica that leaves and joins again does not raise the quota.
func TestAReplicaThatFlapsBringsItsTokensOnceAMinute(t *testing.T) {
	t.Parallel()
	k, got := limited(t, 0, 60), 0
	for second := range 121 {
		got += spend(k, "llama", 1+second%2, noon.Add(time.Duration(second)*time.Second))
	}
	// A bucket of two replicas, what they earn in two minutes, and two more of the one.
	require.LessOrEqual(t, got, 120+2*120+2*60)
	require.GreaterOrEqual(t, got, 120+120, "one replica's is there in any case")

	k = limited(t, 0, 10)
	require.Equal(t, 20, spend(k, "llama", 2, noon))
	require.Zero(t, spend(k, "llama", 1, noon))
	require.Zero(t, spend(k, "llama", 2, noon.Add(time.Second)), "it is the one from before")
	require.Equal(t, 10, spend(k, "llama", 3, noon.Add(time.Second)), "this one is not")
}

func TestBothAreChargedOrNeither(t *testing.T) {
	t.Parallel()
	k := limited(t, 60, 2)
	require.Equal(t, Result{OK: true, Remaining: 1}, k.Charge("llama", 1, noon), "of the tightest")
	require.Equal(t, Result{OK: true, Remaining: 0}, k.Charge("llama", 1, noon))
	for range 5 {
		require.Equal(t, Result{RetryAfter: 30}, k.Charge("llama", 1, noon))
	}
	require.Equal(t, 58, spend(k, "qwen", 1, noon), "the refused ones were not charged")
	require.Equal(t, Result{RetryAfter: 30}, k.Charge("llama", 1, noon), "of the longer wait")
	require.Equal(t, Result{RetryAfter: 1}, k.Charge("qwen", 1, noon))

	k = limited(t, 1, 5)
	require.Equal(t, Result{OK: true, Remaining: 0}, k.Charge("llama", 1, noon))
	require.Equal(t, Result{RetryAfter: 60}, k.Charge("llama", 1, noon))
	require.Equal(t, Result{OK: true, Remaining: 0}, k.Charge("llama", 1, noon.Add(time.Minute)))
	require.InDelta(t, 4, k.quota.models["llama"].part.left(noon.Add(time.Minute)), 1e-6)
}

func TestTheLargestLimits(t *testing.T) {
	t.Parallel()
	k := limited(t, maxPerMinute, maxPerMinute)
	require.Equal(t, Result{OK: true, Remaining: maxPerMinute - 1}, k.Charge("llama", 1<<62, noon))
	require.Equal(t, Result{OK: true, Remaining: maxPerMinute - 1}, k.Charge("llama", 1, noon.Add(time.Second)))
	k = limited(t, 0, 3)
	require.Equal(t, Result{OK: true, Remaining: maxPerMinute - 2}, k.Charge("llama", maxPerMinute/3, noon), "999999999 of them")
}

func TestTimeThatGoesBackEarnsNothing(t *testing.T) {
	t.Parallel()
	k := limited(t, 60, 0)
	require.Equal(t, 60, spend(k, "any", 1, noon))
	for range 100 {
		require.False(t, k.Charge("any", 1, noon.Add(-time.Minute)).OK)
		require.False(t, k.Charge("any", 1, noon).OK)
	}
	require.True(t, k.Charge("any", 1, noon.Add(time.Second)).OK)
}

func TestNoKeyHasNoQuota(t *testing.T) {
	t.Parallel()
	var k *Key
	require.Equal(t, Result{OK: true, Remaining: Unlimited}, k.Charge("any", 1, noon))
	require.Equal(t, Result{OK: true, Remaining: Unlimited}, mustParse(t, one("id: a", "quota: {}")).ByID("a").Charge("any", 1, noon))
}

func TestTokensSurviveAReload(t *testing.T) {
	t.Parallel()
	before := mustParse(t, limitedFile(60, 10))
	old := before.ByID("a")
	require.Equal(t, 10, spend(old, "llama", 1, noon))

	after := mustParse(t, limitedFile(600, 20))
	after.takeOver(before, noon)
	k := after.ByID("a")
	require.NotSame(t, old, k)
	require.Equal(t, Result{RetryAfter: 3}, k.Charge("llama", 1, noon), "no new tokens, a new rate")
	require.Equal(t, Result{OK: true, Remaining: 49}, k.Charge("qwen", 1, noon))
	require.Equal(t, Result{OK: true, Remaining: 48}, old.Charge("qwen", 1, noon), "the old form counts with it")
	require.Equal(t, 600, spend(k, "qwen", 1, noon.Add(time.Minute)))
	require.Equal(t, 20, spend(limitedAgain(t, after, 0, 20), "llama", 1, noon.Add(2*time.Minute)))
}

// limitedAgain returns the key "a" of a new version of the file with other limits.
func limitedAgain(t *testing.T, before *Keys, all, llama int) *Key {
	t.Helper()
	k := mustParse(t, limitedFile(all, llama))
	k.takeOver(before, noon)
	return k.ByID("a")
}

func TestALimitComesAndGoes(t *testing.T) {
	t.Parallel()
	before := mustParse(t, limitedFile(2, 0))
	require.Equal(t, 2, spend(before.ByID("a"), "llama", 1, noon))
	require.Equal(t, 3, spend(limitedAgain(t, before, 0, 3), "llama", 1, noon))
	before = mustParse(t, limitedFile(0, 2))
	require.Equal(t, 2, spend(before.ByID("a"), "llama", 1, noon))
	require.Equal(t, 3, spend(limitedAgain(t, before, 3, 0), "llama", 1, noon))
	require.Equal(t, 4, spend(limitedAgain(t, mustParse(t, one("id: a")), 4, 0), "llama", 1, noon))
	require.Equal(t, Unlimited, limitedAgain(t, before, 0, 0).Charge("llama", 1, noon).Remaining)

	before = mustParse(t, limitedFile(100, 0))
	require.True(t, before.ByID("a").Charge("llama", 1, noon).OK)
	require.Equal(t, 5, spend(limitedAgain(t, before, 5, 0), "llama", 1, noon), "what is over the new limit is gone")

	other := mustParse(t, "keys: [{id: b, tenant: a, key_hash: "+hashOf("secret")+", quota: {requests_per_minute: 7}}]")
	other.takeOver(before, noon)
	require.Equal(t, 7, spend(other.ByID("b"), "llama", 1, noon), "another id is another quota")
}

// Eight at once, while the file is read again and again, get what one would.
func TestChargesAtOnceAreCountedOnce(t *testing.T) {
	t.Parallel()
	const all, llama = 1000, 100
	var current atomic.Pointer[Keys]
	current.Store(mustParse(t, limitedFile(all, llama)))
	var good [2]atomic.Int64
	var chargers, reloader sync.WaitGroup
	stop := make(chan struct{})
	reloader.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			next, err := Parse([]byte(limitedFile(all, llama)))
			if err != nil {
				t.Error(err)
				return
			}
			next.takeOver(current.Load(), noon)
			current.Store(next)
		}
	})
	for g := range 8 {
		chargers.Go(func() {
			for i := range 500 {
				model := (g + i) % 2
				if current.Load().ByID("a").Charge([]string{"qwen", "llama"}[model], 2, noon).OK {
					good[model].Add(1)
				}
			}
		})
	}
	chargers.Wait()
	close(stop)
	reloader.Wait()
	require.LessOrEqual(t, good[1].Load(), int64(2*llama))
	require.Equal(t, int64(all), good[0].Load()+good[1].Load())
}
