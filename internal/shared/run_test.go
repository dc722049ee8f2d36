// SPDX-License-Identifier: Apache-2.0

package shared

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A server that answers at times and is too slow at others is not used and given up ten times
// a second.
func TestAServerThatFailsAgainIsTriedLessOften(t *testing.T) {
	every := nextProbe(probeEvery, time.Hour)
	require.Equal(t, probeEvery, every)
	for _, ms := range []int64{200, 400, 800, 1600, 2000, 2000} {
		every = nextProbe(every, time.Second)
		require.Equal(t, ms, every.Milliseconds())
	}
	require.Equal(t, probeEvery, nextProbe(every, steadyTime))
}
