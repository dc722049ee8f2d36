// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
)

func TestModelThatWaitsForRoomSaysForWhose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newOnGPU(t, member("a", 1, 1, up), member("b", 1, 1), member("c", 1, 1))
		text := func(model string) string {
			if w := g.RoomWait(model); w != nil {
				return w.Text(time.Now())
			}
			return ""
		}
		slot, _ := g.Take(chatOf("a"))
		require.Empty(t, text("b"))
		g.want("b", "c")
		g.wait(minUp - 5*time.Second)
		require.Equal(t, "waits for room in group gpu0, which a must free first, in 5s at the earliest", text("b"))
		require.Equal(t, "waits for room in group gpu0, behind b, which a must free first, in 5s at the earliest", text("c"))
		g.wait(5 * time.Second)
		require.Equal(t, "waits for room in group gpu0, which a must free first", text("b"), "its last request is running")
		slot.Release()
		synctest.Wait()
		g.agents["a"].status(pb.State_STATE_ASLEEP)
		require.Empty(t, text("b"), "it is on its way")
		require.Equal(t, "waits for room in group gpu0, behind b", text("c"))
		g.agents["b"].status(pb.State_STATE_WAKING)
		require.Equal(t, "waits for room in group gpu0, which b must free first", text("c"))
		require.Equal(t, text("c"), g.Models()[2].Wait.Text(time.Now()))
		g.SetWanted("c", false)
		require.Empty(t, text("c"))
		require.Empty(t, text("nobody's"))
	})
}
