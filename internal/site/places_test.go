// SPDX-License-Identifier: Apache-2.0

package site

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/holdstate"
)

func TestAPlaceIsTakenOverOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var p places
		require.Zero(t, p.take("m", 1, 0))
		p.add("m", holdstate.Standing{Identity: 1, Place: 5})
		require.Zero(t, p.take("n", 1, 0), "another model")
		require.Equal(t, uint64(5), p.take("m", 1, 7), "the earlier one")
		require.Zero(t, p.take("m", 1, 7))
		p.add("m", holdstate.Standing{Identity: 1, Place: 5})
		require.Zero(t, p.take("m", 1, 7), "it is the same request, or one that only says so")
		require.Equal(t, uint64(7), p.take("m", 2, 7))
		require.Zero(t, p.take("m", 2, 7))

		p.add("m", holdstate.Standing{Identity: 3, Place: 9})
		time.Sleep(placeLife - 1)
		require.Equal(t, uint64(9), p.take("m", 3, 0))
		p.add("m", holdstate.Standing{Identity: 4, Place: 9})
		time.Sleep(placeLife)
		require.Zero(t, p.take("m", 4, 0))
		require.Equal(t, uint64(8), p.take("m", 4, 8))
		require.Equal(t, uint64(7), p.take("m", 1, 7), "much later")
		time.Sleep(placeLife - 1)
		p.expire()
		require.Len(t, p.of, 2)
		time.Sleep(time.Nanosecond)
		p.expire()
		require.Empty(t, p.of)
		require.Zero(t, p.order.Len())
	})
}

func TestPlacesAreBounded(t *testing.T) {
	t.Parallel()
	var p places
	for i := range uint64(placesKept + 10) {
		p.add("m", holdstate.Standing{Identity: i + 1, Place: 1})
	}
	require.Len(t, p.of, placesKept)
	require.Equal(t, placesKept, p.order.Len())
	require.Zero(t, p.take("m", 10, 0), "the oldest are forgotten")
	require.Equal(t, uint64(1), p.take("m", 12, 0))
}
