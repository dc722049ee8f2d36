// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/extproc/extproctest"
)

const toldOfNone = "does not take streamed answers"

// An Envoy before 1.37 ends the stream at the first keepalive.
func TestAnEnvoyThatTakesNoStreamedAnswers(t *testing.T) {
	t.Parallel()
	for name, to := range map[string]Destination{"by route": ByRoute, "as a picker": AsPicker} {
		bubble(t, func(r *rig) {
			t := r.t
			r.to = to
			hold := func() *extproctest.Exchange { return r.viaGateway(t, extproctest.Request(chatPath, gatewayBody)...) }
			refuse := func(x *extproctest.Exchange) {
				elapse(interval)
				require.Equal(t, []string{"15s head 200", `15s " "`}, x.Events(), name)
				x.Reset()
				_ = x.End()
				synctest.Wait()
			}
			x := hold()
			elapse(time.Second)
			y := hold() // it waits already when the first is refused
			elapse(interval - time.Second)
			x.Reset()
			_ = x.End()
			synctest.Wait()
			require.Equal(t, 1, strings.Count(r.log.String(), toldOfNone), name)
			elapse(2 * interval)
			require.Empty(t, y.Events(), "it has no keepalives any more")
			z := hold()
			elapse(2 * interval)
			require.Empty(t, z.Events(), name)
			elapse(firstSilence) // then one is tried again, of those that come
			refuse(hold())
			require.Equal(t, 1, strings.Count(r.log.String(), toldOfNone), "it was said before")
			elapse(2 * firstSilence)
			w := hold()
			elapse(interval)
			require.Empty(t, w.Events(), "the second time is longer")
			r.slots.up(engineA, 9)
			for _, waits := range []*extproctest.Exchange{y, z, w} {
				_ = waits.End()
				require.Contains(t, waits.Events()[0], "serve on", name)
			}
			elapse(logWait)
		})
	}
}

// A client that leaves later, or at an Envoy of which it is known, says nothing.
func TestAClientThatLeavesIsNoEnvoy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s streamed
		require.False(t, s.ended("late", endedAtHead, wasReset))
		require.False(t, s.refuses("late"))
		for range endedByEnvoy - 1 {
			require.False(t, s.ended("late", 0, wasReset))
		}
		require.False(t, s.refuses("late"), "it has taken one")
		require.True(t, s.ended("late", 0, wasReset))
		require.True(t, s.refuses("late"))
		require.False(t, s.ended("done", 0, byUs))
		require.False(t, s.refuses("done"), "the answer ended by itself")
		require.True(t, s.ended("old", 0, wasReset))
		require.False(t, s.ended("old", 0, wasReset), "it was said")
		time.Sleep(firstSilence)
		require.True(t, s.refuses("old"))
		time.Sleep(9*firstSilence + 1)
		require.False(t, s.refuses("old"))
		require.Equal(t, maxSilence, silence(1000))
		for i := range 2 * maxEnvoys {
			s.ended(strconv.Itoa(i), 0, wasReset)
		}
		require.LessOrEqual(t, len(s.all), maxEnvoys)
	})
}

// An Envoy closes the stream of a client that leaves. Clients that leave at their first keepalive
// must not end those of others.
func TestClientsThatLeaveSilenceNoOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s streamed
		for range endedByEnvoy - 1 {
			require.False(t, s.ended("new", 0, closed))
			require.False(t, s.refuses("new"))
		}
		require.True(t, s.ended("new", 0, closed), "it may be another data plane")
		for range 10 {
			require.True(t, s.refuses("new"))
			time.Sleep(firstSilence)
			require.False(t, s.refuses("new"), "never longer")
			s.ended("new", 0, closed)
		}
		s.ended("new", endedAtHead, closed)
		for range 10 * endedByEnvoy {
			s.ended("new", 0, closed)
		}
		require.False(t, s.refuses("new"), "it has taken one")
	})
	bubble(t, func(r *rig) {
		t := r.t
		r.to = ByRoute
		for range endedByEnvoy - 1 {
			x := r.viaGateway(t, extproctest.Request(chatPath, gatewayBody)...)
			elapse(interval)
			require.Equal(t, []string{"15s head 200", `15s " "`}, x.Events())
			_ = x.Stream.CloseSend()
			_ = x.End()
			synctest.Wait()
		}
		require.NotContains(t, r.log.String(), toldOfNone)
		elapse(logWait)
	})
}

// Holdgate's own bootstrap is checked at its start.
func TestTheOwnBootstrapsKeepalivesGoOn(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		for range 3 {
			x := r.ask(t, extproctest.Request(chatPath, gatewayBody))
			elapse(interval)
			require.Len(t, x.Events(), 2)
			_ = x.Stream.CloseSend()
			_ = x.End()
			synctest.Wait()
		}
		elapse(logWait)
		require.NotContains(t, r.log.String(), toldOfNone)
	})
}
