// SPDX-License-Identifier: Apache-2.0

package access

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestPeekSaysWhatChargeDoes: Peek returns what the next Charge returns, however often it is
// called.
func TestPeekSaysWhatChargeDoes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		k := limited(t, rapid.IntRange(1, 40).Draw(rt, "per minute"), rapid.IntRange(1, 20).Draw(rt, "per replica"))
		now := noon
		for range rapid.IntRange(1, 150).Draw(rt, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(-100, 5000).Draw(rt, "ms")) * time.Millisecond)
			replicas := rapid.IntRange(0, 3).Draw(rt, "replicas")
			// Calls for other numbers of replicas change nothing either.
			_ = k.Peek("llama", replicas+1, now)
			_ = k.Peek("llama", 1, now)
			want := k.Peek("llama", replicas, now)
			require.Equal(rt, want, k.Peek("llama", replicas, now))
			require.Equal(rt, want, k.Charge("llama", replicas, now))
		}
	})
}

func TestPeekWithoutAQuota(t *testing.T) {
	t.Parallel()
	unlimited := Result{OK: true, Remaining: Unlimited}
	require.Equal(t, unlimited, Anonymous().Peek("m", 1, noon))
	require.Equal(t, unlimited, (*Key)(nil).Peek("m", 1, noon))
}
