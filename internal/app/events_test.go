// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/internal/events"
)

// since returns what happened since the last call.
func since(t *testing.T, r *events.Reader) (list []string) {
	t.Helper()
	synctest.Wait()
	got, _, open := r.Next()
	require.True(t, open)
	for _, e := range got {
		text := string(e.Type) + " " + e.Model
		if e.Requests > 0 {
			text += fmt.Sprint(" ", e.Requests)
		}
		if e.Reason != "" {
			text += ": " + e.Reason
		}
		list = append(list, text)
	}
	return list
}

func TestEventsTellWhatHappens(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		reader := r.events.Read("")
		defer reader.Close()
		a := r.join(pb.State_STATE_ASLEEP, "m")
		require.Empty(r.t, since(r.t, reader), "a model that sleeps is no news")
		asks := []ask{r.chat("m", "x-wake-keepalive", "off"), r.chat("m", "x-wake-keepalive", "off")}
		require.ElementsMatch(r.t, []string{"held m", "held m", "waking m"}, since(r.t, reader))
		require.False(r.t, r.states.WakingSince("m").IsZero())
		pass(3 * time.Second)
		a.says(r.t, pb.State_STATE_SERVING)
		require.ElementsMatch(r.t, []string{"released m 2", "awake m"}, since(r.t, reader))
		asks = append(asks, r.chat("m"))
		require.Empty(r.t, since(r.t, reader), "a request that is served is no event")
		for _, a := range asks {
			a.gone()
		}
		pass(time.Second)
		r.envoyEnds()
		require.Zero(r.t, r.InFlight())
		a.leave()
		require.Equal(r.t, []string{"asleep m"}, since(r.t, reader))

		r.chat("nowhere")
		require.Equal(r.t, []string{"refused nowhere: model_not_found"}, since(r.t, reader))
		r.chat("m")
		require.ElementsMatch(r.t, []string{"held m", "waking m"}, since(r.t, reader))
		require.NoError(r.t, r.wakeFailed("m", "no GPU"))
		require.ElementsMatch(r.t, []string{"failed m: no GPU", "refused m: model_waking", "asleep m"}, since(r.t, reader))
		require.NoError(r.t, r.wakeModel("half", time.Minute))
		require.Equal(r.t, []string{"waking half"}, since(r.t, reader))
		pass(time.Minute)
		require.Equal(r.t, []string{"asleep half"}, since(r.t, reader))
	})
}
