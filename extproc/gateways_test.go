// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTheGatewaysThatCallAreKnown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &Server{}
		require.Empty(t, s.Gateways())
		s.gateways.note("10.0.0.2", time.Now())
		s.gateways.note("10.0.0.1", time.Now())
		time.Sleep(time.Minute)
		s.gateways.note("10.0.0.1", time.Now())
		s.logs.opened("10.0.0.2")
		s.logs.tells("10.0.0.2")
		want := []Gateway{
			{Envoy: "10.0.0.1", Requests: 2, LastSeen: time.Now()},
			{Envoy: "10.0.0.2", Requests: 1, LastSeen: time.Now().Add(-time.Minute), Log: true},
		}
		require.Equal(t, want, s.Gateways())
		time.Sleep(gatewayMemory + time.Second)
		require.Equal(t, want[1:], s.Gateways(), "without requests and without a log it is forgotten")
	})
}

func TestOnlySoManyGatewaysAreRemembered(t *testing.T) {
	t.Parallel()
	s := &Server{}
	now := time.Now()
	for i := range maxGateways + 10 {
		s.gateways.note(strconv.Itoa(i), now.Add(time.Duration(i)))
	}
	list := s.Gateways()
	require.Len(t, list, maxGateways)
	for _, g := range list {
		i, err := strconv.Atoi(g.Envoy)
		require.NoError(t, err)
		require.GreaterOrEqual(t, i, 10, "the oldest are forgotten")
	}
}
