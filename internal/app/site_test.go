// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/kedacore/keda/v2/pkg/scalers/externalscaler"
	"github.com/stretchr/testify/require"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/grpctest"
	"github.com/holdgate/holdgate/internal/polltest"
	"github.com/holdgate/holdgate/internal/shared"
	"github.com/holdgate/holdgate/internal/shared/valkeytest"
	"github.com/holdgate/holdgate/internal/target"
)

var (
	chatOfM    = target.Target{Model: "m", Kind: target.Chat}
	scalesOfM  = &externalscaler.ScaledObjectRef{Name: "m", Namespace: "default", ScalerMetadata: map[string]string{"model": "m"}}
	metricsOfM = &externalscaler.GetMetricsRequest{ScaledObjectRef: scalesOfM}
)

// waits has a request wait for a model on a router, until the test ends or its waiter leaves.
func waits(t *testing.T, a *App, id string) *holdstate.Waiter {
	t.Helper()
	w, err := a.machine.Hold(holdstate.Request{Target: chatOfM, ClientIDs: [2]string{id}})
	require.NoError(t, err)
	return w
}

func TestAnyRouterAnswersForTheDemandOfTheSite(t *testing.T) {
	t.Parallel()
	server := valkeytest.Start(t)
	one, two := sharing(t, server), sharing(t, server, "--keda-listen=127.0.0.1:0")
	keda := externalscaler.NewExternalScalerClient(grpctest.Serve(t, two.keda, grpctest.Unix))
	value := func() int64 {
		m, err := keda.GetMetrics(t.Context(), metricsOfM)
		require.NoError(t, err)
		return m.GetMetricValues()[0].GetMetricValue()
	}
	gauge := func(a *App, name string) int { return (&rig{App: a, t: t}).count(name, "m") }

	retried := uuid.NewString()
	waiters := []*holdstate.Waiter{waits(t, one, retried), waits(t, one, uuid.NewString()), waits(t, two, retried), waits(t, two, uuid.NewString())}
	polltest.Until(t, "KEDA learns of three requests", func() bool { return value() == 3 })
	polltest.Until(t, "so does the other router", func() bool { return gauge(one, "hivenet_site_pending_demand") == 3 })
	for _, a := range []*App{one, two} {
		require.Equal(t, 3, gauge(a, "hivenet_site_pending_demand"))
		require.Equal(t, 1, gauge(a, "hivenet_site_wake_wanted"))
		require.Equal(t, 2, gauge(a, "hivenet_pending_demand"), "its own")
	}
	for _, w := range waiters[2:] {
		w.Report(holdstate.Done)
		w.Report(holdstate.Leave)
	}
	polltest.Until(t, "KEDA learns of two requests", func() bool { return value() == 2 })
	require.Zero(t, gauge(two, "hivenet_pending_demand"))
	for _, w := range waiters[:2] {
		w.Report(holdstate.Leave)
	}
	polltest.Until(t, "KEDA learns of the linger", func() bool { return value() == 1 })
	require.Equal(t, 1, gauge(two, "hivenet_site_wake_wanted"))

	require.NoError(t, one.wakeModel("m", time.Hour))
	polltest.Until(t, "a wake ahead of requests is known too", func() bool { return two.demand.Wanted("m") })
}

func TestAnyRouterAnswersForTheUseOfTheSite(t *testing.T) {
	t.Parallel()
	server := valkeytest.Start(t)
	one, two := sharing(t, server), sharing(t, server)
	keda := kedaModels{two.notifiers}
	require.False(t, keda.Active("m", time.Minute))
	one.notifiers.recent.Touch("m")
	polltest.Until(t, "the other router knows", func() bool { return keda.Active("m", time.Minute) })
	require.False(t, two.notifiers.used("m"), "backends are kept awake by their own router's use only")
	require.False(t, keda.Wanted("m"))
}

// TestKEDAHearsOfAnEdgeOnAnyRouter measures from the hold on one router to the message of
// another one's stream.
func TestKEDAHearsOfAnEdgeOnAnyRouter(t *testing.T) {
	t.Parallel()
	server := valkeytest.Start(t)
	one, two := sharing(t, server, "--wake-linger=0s"), sharing(t, server, "--wake-linger=0s", "--keda-listen=127.0.0.1:0")
	limited, cancel := context.WithTimeout(t.Context(), 25*time.Second) // before the stream repeats itself
	defer cancel()
	stream, err := externalscaler.NewExternalScalerClient(grpctest.Serve(t, two.keda, grpctest.Unix)).StreamIsActive(limited, scalesOfM)
	require.NoError(t, err)
	edge := func() time.Duration {
		begin := time.Now()
		w := waits(t, one, uuid.NewString())
		active, err := stream.Recv()
		require.NoError(t, err)
		require.True(t, active.GetResult())
		took := time.Since(begin)
		w.Report(holdstate.Leave)
		polltest.Until(t, "the end of the demand", func() bool { return !two.demand.Wanted("m") })
		return took
	}
	edge() // the message of the first may be lost before the subscription: then a beat tells
	var times []time.Duration
	for range 20 {
		times = append(times, edge())
	}
	slices.Sort(times)
	t.Logf("median %v, at worst %v", times[10], times[19])
	// It is 6 ms on an idle machine; this one may be busy, but a beat is slower.
	require.Less(t, times[10], shared.Beat/4)
}

func TestAWakeThatFailedIsKnownToTheSite(t *testing.T) {
	t.Parallel()
	server := valkeytest.Start(t)
	one, two := sharing(t, server), sharing(t, server)
	w := waits(t, two, "")
	require.NoError(t, one.wakeFailed("m", "no GPU"))
	require.ErrorContains(t, one.machine.WouldHold(holdstate.Request{Target: chatOfM}), "no GPU")
	polltest.Until(t, "the waiter of the other router ends", func() bool { return w.Status().State == holdstate.Ended })
	require.EqualError(t, w.Status().Why(), "the wake failed: no GPU")
	require.ErrorContains(t, two.machine.WouldHold(holdstate.Request{Target: chatOfM}), "no GPU")
	late := sharing(t, server)
	polltest.Until(t, "a router that starts refuses holds", func() bool {
		return late.machine.WouldHold(holdstate.Request{Target: chatOfM}) != nil
	})
	require.NoError(t, late.machine.WouldHold(holdstate.Request{Target: target.Target{Model: "half", Kind: target.Chat}}))
}

func TestRetryAfterIsFromTheWakesOfAllRouters(t *testing.T) {
	t.Parallel()
	server := valkeytest.Start(t)
	one, two := sharing(t, server), sharing(t, server)
	one.machine.SetTimes("m", []time.Duration{7 * time.Second, 7 * time.Second, 7 * time.Second})
	one.woke("m", 7*time.Second)
	polltest.Until(t, "the other router knows", func() bool { return two.machine.RetryAfter("m") == 7 })
	require.Equal(t, 1, (&rig{App: one, t: t}).count("hivenet_wake_seconds", "m"))
	late := sharing(t, server)
	polltest.Until(t, "a router that starts knows", func() bool { return late.machine.RetryAfter("m") == 7 })
}

// A wake that failed on another router is no reason to refuse requests while an agent wakes the
// model for this one.
func TestAWakeThatGoesOnHereOutweighsOneThatFailedElsewhere(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		p := r.join(pb.State_STATE_ASLEEP, "m")
		held := r.chat("m", off...)
		require.Equal(r.t, []string{"wake m"}, p.heard())
		until := time.Now().Add(10 * time.Second)
		require.False(r.t, r.notifiers.wakeRefusedElsewhere("m", "no GPU", until))
		p.says(r.t, pb.State_STATE_SERVING)
		require.Contains(r.t, held.all(), "serve on")
		require.False(r.t, r.notifiers.wakeRefusedElsewhere("m", "no GPU", until), "it is up")
		require.NoError(r.t, r.machine.WouldHold(holdstate.Request{Target: chatOfM}))
		held.gone()
		p.leave()
		pass(5 * time.Second)
		r.envoyEnds()
		waiting := r.chat("half", off...)
		require.True(r.t, r.notifiers.wakeRefusedElsewhere("half", "no GPU", time.Now().Add(3*time.Second)))
		require.Contains(r.t, waiting.all(), "no GPU")
		pass(2 * time.Second)
		require.Contains(r.t, r.chat("half", off...).all(), "no GPU")
		pass(time.Second)
		again := r.chat("half", off...)
		require.Empty(r.t, again.all(), "it waits")
		again.gone()
		pass(time.Minute)
	})
}
