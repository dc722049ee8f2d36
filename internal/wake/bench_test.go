// SPDX-License-Identifier: Apache-2.0

package wake

import (
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/kedacore/keda/v2/pkg/scalers/externalscaler"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// report adds the median and the 99th percentile.
func report(b *testing.B, times []time.Duration) {
	b.Helper()
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Nanoseconds())/1e6, "ms-p50")
	b.ReportMetric(float64(times[len(times)*99/100].Nanoseconds())/1e6, "ms-p99")
}

// watchedModels says when somebody has seen that a model is not wanted.
type watchedModels struct {
	*fakeModels

	saw chan struct{}
}

func (w watchedModels) Wanted(model string) bool {
	wanted := w.fakeModels.Wanted(model)
	if !wanted {
		w.saw <- struct{}{}
	}
	return wanted
}

// BenchmarkNeedToKEDA is the time from a need to its receipt by a KEDA client,
// over TCP on loopback.
func BenchmarkNeedToKEDA(b *testing.B) {
	models := watchedModels{
		&fakeModels{Recent: NewRecent(), known: map[string]string{"llama": "chat"}, wanted: map[string]bool{}}, make(chan struct{}),
	}
	keda := NewKEDA(KEDAOptions{Models: models, Log: zerolog.Nop()})
	server := grpc.NewServer()
	externalscaler.RegisterExternalScalerServer(server, keda)
	listener, err := (&net.ListenConfig{}).Listen(b.Context(), "tcp", "127.0.0.1:0")
	require.NoError(b, err)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(b, err)
	b.Cleanup(func() {
		require.NoError(b, conn.Close())
		server.Stop()
		require.NoError(b, <-served)
	})
	set := func(wanted bool) {
		models.mu.Lock()
		models.wanted["llama"] = wanted
		models.mu.Unlock()
		keda.Changed("llama")
	}
	set(true)
	stream, err := externalscaler.NewExternalScalerClient(conn).StreamIsActive(b.Context(), ref(map[string]string{"model": "llama"}))
	require.NoError(b, err)
	_, err = stream.Recv()
	require.NoError(b, err)
	var times []time.Duration
	for b.Loop() {
		b.StopTimer()
		set(false)
		<-models.saw
		b.StartTimer()
		begin := time.Now()
		set(true)
		_, err := stream.Recv()
		require.NoError(b, err)
		times = append(times, time.Since(begin))
	}
	report(b, times)
}

// BenchmarkNeedToWebhook is the time from a need to the arrival of its call.
func BenchmarkNeedToWebhook(b *testing.B) {
	arrived := make(chan time.Time, 1)
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { arrived <- time.Now() }))
	b.Cleanup(s.Close)
	w := NewWebhooks(WebhookOptions{
		Demand: func(string) int { return 1 }, OnFailed: func(_, reason string) { b.Error(reason) },
		Registerer: prometheus.NewRegistry(), Log: zerolog.Nop(),
	})
	b.Cleanup(func() { w.Stop(b.Context()) })
	var times []time.Duration
	for i := 0; b.Loop(); i++ {
		model := strconv.Itoa(i)
		w.Set(model, &Hook{URL: s.URL})
		begin := time.Now()
		w.Wanted(model, true, false)
		times = append(times, (<-arrived).Sub(begin))
		w.Wanted(model, false, false)
		w.Set(model, nil)
	}
	report(b, times)
}

func BenchmarkTouch(b *testing.B) {
	r := NewRecent()
	r.Touch("llama")
	b.ReportAllocs()
	for b.Loop() {
		r.Touch("llama")
	}
}
