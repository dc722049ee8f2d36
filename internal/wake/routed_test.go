// SPDX-License-Identifier: Apache-2.0

package wake

import (
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRecentKnowsWhenAModelWasUsedLast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := NewRecent()
		within := func(model string, d time.Duration) bool { return r.Within(model, d, time.Now()) }
		require.False(t, within("a", time.Hour))
		r.Touch("a")
		require.True(t, within("a", time.Second))
		require.False(t, within("b", time.Hour))
		time.Sleep(time.Minute)
		require.False(t, within("a", time.Minute))
		require.True(t, within("a", time.Minute+1))
		r.Touch("a")
		require.True(t, within("a", time.Second))
	})
}

func TestRecentForgetsNoNameThatIsAddedAtTheSameTime(t *testing.T) {
	t.Parallel()
	r := NewRecent()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 100 {
				r.Touch(strconv.Itoa(j))
				r.Touch(strconv.Itoa(i*1000 + j))
			}
		})
	}
	wg.Wait()
	for i := range 8 {
		for j := range 100 {
			require.True(t, r.Within(strconv.Itoa(i*1000+j), time.Hour, time.Now()))
		}
	}
	require.Len(t, r.seen, 800)
}

func TestTouchAllocatesNothing(t *testing.T) { //nolint:paralleltest // it counts allocations
	r := NewRecent()
	body := []byte("llama")
	r.Touch(string(body))
	require.Zero(t, testing.AllocsPerRun(1000, func() { r.Touch("llama") }))
	require.Zero(t, testing.AllocsPerRun(1000, func() { r.Within("llama", time.Minute, time.Now()) }))
}

func TestEachSaysHowLongAgoAModelWasUsed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := NewRecent()
		r.Touch("m")
		time.Sleep(time.Minute)
		r.Touch("n")
		time.Sleep(time.Second)
		found := map[string]time.Duration{}
		r.Each(func(model string, ago time.Duration) { found[model] = ago })
		require.Equal(t, map[string]time.Duration{"m": time.Minute + time.Second, "n": time.Second}, found)
	})
}
