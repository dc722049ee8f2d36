// SPDX-License-Identifier: Apache-2.0

package site_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/shared/valkeytest"
	"github.com/holdgate/holdgate/internal/site"
)

func TestATicketIsAcceptedByOneRouterOfASite(t *testing.T) {
	t.Parallel()
	server := valkeytest.Start(t)
	clients := threeRouters(t, server.Router)
	first, second, third := site.NewTickets(clients[0]), site.NewTickets(clients[1]), site.NewTickets(clients[2])
	require.False(t, first.UsedElsewhere("a"))
	require.False(t, first.UsedElsewhere("a"), "a call that is made twice is one")
	require.True(t, second.UsedElsewhere("a"))
	require.True(t, third.UsedElsewhere("a"))
	require.False(t, third.UsedElsewhere("b"))
	require.True(t, first.UsedElsewhere("b"))

	server.Stop()
	require.False(t, third.UsedElsewhere("a"), "without the server each router knows its own")
}
