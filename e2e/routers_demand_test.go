// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/kedacore/keda/v2/pkg/scalers/externalscaler"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/holdgate/holdgate/internal/shared/valkeytest"
)

// KEDA is connected to one router, and hears of requests that wait on the other: within
// milliseconds over its stream, each of them once, and 5 s after the other was killed only of
// those whose clients came back.
func TestKEDAOfOneRouterHearsOfTheOthers(t *testing.T) {
	const requests, back = 20, 5
	rs := startRouters(t, 1)
	scaler := valkeytest.FreeAddress(t)
	rs.add("with KEDA", []string{"--keda-listen", scaler, "--wake-linger", "0s"})
	dead, watched := rs.all[0], rs.all[1]
	watched.ready()
	watched.startEnvoy()
	watched.eventually("the router has the map", func() bool { return watched.mapTag() == dead.mapTag() })
	keda, m := kedaClient(t, scaler, insecure.NewCredentials()), scaledObject("m", "window", "1s")
	value := func() int64 {
		v, err := keda.GetMetrics(t.Context(), &externalscaler.GetMetricsRequest{ScaledObjectRef: m})
		require.NoError(t, err)
		return v.GetMetricValues()[0].GetMetricValue()
	}
	stream, err := keda.StreamIsActive(t.Context(), m)
	require.NoError(t, err)
	require.Zero(t, value())

	clients := make([]string, requests)
	var refused, waiting []<-chan result
	begin := time.Now()
	for n := range clients {
		clients[n] = uuid.NewString()
		refused = append(refused, dead.start(t.Context(), chatPath, chatBody("m", false), "X-Client-Request-ID", clients[n]))
	}
	active, err := stream.Recv()
	require.NoError(t, err)
	require.True(t, active.GetResult())
	t.Logf("KEDA heard of the first request after %v", time.Since(begin))
	require.Less(t, time.Since(begin), 500*time.Millisecond) // the machine may be busy
	watched.eventually("KEDA knows of all", func() bool { return value() == requests })
	require.Zero(t, watched.value(`pending_demand{model="m"}`))

	dead.kill()
	killed := time.Now()
	for _, answer := range refused {
		require.Equal(t, http.StatusServiceUnavailable, (<-answer).status)
	}
	for _, client := range clients[:back] {
		waiting = append(waiting, watched.start(t.Context(), chatPath, chatBody("m", false), "X-Client-Request-ID", client))
	}
	var seen []int64
	for time.Since(killed) < 5*time.Second+100*time.Millisecond {
		if v := value(); !slices.Contains(seen, v) {
			t.Logf("KEDA sees %d after %v", v, time.Since(killed))
			seen = append(seen, v)
		}
		time.Sleep(20 * time.Millisecond)
	}
	require.Equal(t, []int64{requests, back}, seen, "nobody is counted twice")
	require.Equal(t, int64(back), value())

	c, e := newCounter(t, 0)
	rs.all = rs.all[1:]
	rs.agent("engine", e.addr(), 2)
	for _, answer := range waiting {
		require.Equal(t, http.StatusOK, (<-answer).status)
	}
	require.Len(t, c.came, back)
	watched.eventually("no demand is left", func() bool { return value() <= 1 })
}

// A wake that failed on one router ends the holds of the other, and of one that starts within
// the cooldown.
func TestAFailedWakeEndsTheHoldsOfAllRouters(t *testing.T) {
	rs := startRouters(t, 2, "--wake-cooldown", "15s")
	one, two := rs.all[0], rs.all[1]
	held := two.start(t.Context(), chatPath, chatBody("m", false))
	one.metric(`hivenet_site_pending_demand{model="m"}`, "1")
	q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+one.admin+"/v1/wake/m/failed", strings.NewReader(`{"reason": "no GPU left"}`))
	require.NoError(t, err)
	begin := time.Now()
	require.Less(t, one.do(q).status, 300)
	answer := <-held
	t.Logf("the hold of the other router ended after %v", time.Since(begin))
	require.Equal(t, http.StatusServiceUnavailable, answer.status)
	require.Contains(t, answer.body, "no GPU left")
	one.kill()
	one.serve()
	one.ready()
	for _, r := range rs.all {
		again := r.post(chatPath, chatBody("m", false))
		require.Equal(t, http.StatusServiceUnavailable, again.status)
		require.Contains(t, again.body, "no GPU left")
	}
	require.Less(t, time.Since(begin), 15*time.Second, "this machine is too slow for the test")
}
