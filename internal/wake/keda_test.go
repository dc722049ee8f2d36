// SPDX-License-Identifier: Apache-2.0

package wake

import (
	"context"
	"fmt"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kedacore/keda/v2/pkg/scalers/externalscaler"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdgate/holdgate/internal/grpctest"
)

// fakeModels is a router with needs that the test sets. Its activity is a Recent.
type fakeModels struct {
	*Recent

	mu     sync.Mutex
	known  map[string]string // kind by model
	wanted map[string]bool
	demand map[string]int
}

func (f *fakeModels) Known(model, kind string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	k, ok := f.known[model]
	return ok && (kind == "" || kind == k)
}

func (f *fakeModels) Wanted(model string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.wanted[model]
}

func (f *fakeModels) Demand(model string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.demand[model]
}

func (f *fakeModels) Active(model string, window time.Duration) bool {
	return f.Wanted(model) || f.Within(model, window, time.Now())
}

// kedaRig is a scaler behind a real gRPC server, and KEDA's client.
type kedaRig struct {
	externalscaler.ExternalScalerClient

	*fakeModels

	keda   *KEDA
	server *grpc.Server
}

// newKEDARig must be stopped by close, inside of the bubble it was made in.
func newKEDARig(t *testing.T) *kedaRig {
	t.Helper()
	r := &kedaRig{
		fakeModels: &fakeModels{
			Recent: NewRecent(), known: map[string]string{"llama": "chat", "org/bge": "embedding"},
			wanted: map[string]bool{}, demand: map[string]int{},
		},
		server: grpc.NewServer(),
	}
	r.keda = NewKEDA(KEDAOptions{Models: r.fakeModels, Log: zerolog.Nop()})
	externalscaler.RegisterExternalScalerServer(r.server, r.keda)
	r.ExternalScalerClient = externalscaler.NewExternalScalerClient(grpctest.Serve(t, r.server, nil))
	return r
}

// need changes a need and reports it.
func (r *kedaRig) need(model string, wanted bool) {
	r.mu.Lock()
	r.wanted[model] = wanted
	r.mu.Unlock()
	r.keda.Changed(model)
}

// pushes opens a stream and gives the times, since now, at which it got a true. A
// false, or an error that is not wanted, ends the test.
func (r *kedaRig) pushes(t *testing.T, meta map[string]string) (got func() []time.Duration, end func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := r.StreamIsActive(ctx, ref(meta))
	require.NoError(t, err)
	var mu sync.Mutex
	var at []time.Duration
	begin, ended := time.Now(), make(chan error, 1)
	go func() {
		for {
			m, err := stream.Recv()
			if err == nil && !m.GetResult() {
				err = fmt.Errorf("a false was sent")
			}
			if err != nil {
				ended <- err
				return
			}
			mu.Lock()
			at = append(at, time.Since(begin))
			mu.Unlock()
		}
	}()
	got = func() []time.Duration {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		return append([]time.Duration{}, at...)
	}
	return got, func() error {
		synctest.Wait()
		cancel()
		return <-ended
	}
}

func ref(meta map[string]string) *externalscaler.ScaledObjectRef {
	return &externalscaler.ScaledObjectRef{Name: "so", Namespace: "models", ScalerMetadata: meta}
}

func TestPollsSayWhetherTheModelIsActive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newKEDARig(t)
		active := func(meta map[string]string) bool {
			t.Helper()
			got, err := r.IsActive(t.Context(), ref(meta))
			require.NoError(t, err)
			return got.GetResult()
		}
		llama := map[string]string{"model": "llama", "kind": "chat", "scalerAddress": "holdgate:9004"}
		short := map[string]string{"model": "llama", "window": "10s"}
		require.False(t, active(llama))

		r.need("llama", true)
		require.True(t, active(llama))
		require.False(t, active(map[string]string{"model": "org/bge"}))
		r.need("llama", false)
		require.False(t, active(llama))

		r.Touch("llama")
		time.Sleep(9 * time.Second)
		require.True(t, active(short))
		time.Sleep(time.Second)
		require.False(t, active(short))
		require.True(t, active(llama))
		time.Sleep(DefaultWindow - 10*time.Second)
		require.False(t, active(llama))
	})
}

func TestAStreamGetsTrueAtOnceAtEachEdgeAndEvery30Seconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newKEDARig(t)
		got, end := r.pushes(t, map[string]string{"model": "llama", "window": "1s"})
		other, endOther := r.pushes(t, map[string]string{"model": "org/bge"})
		require.Empty(t, got())

		time.Sleep(5 * time.Second)
		r.need("llama", true)
		require.Equal(t, []time.Duration{5 * time.Second}, got())
		r.keda.Changed("llama") // no edge
		require.Len(t, got(), 1)

		time.Sleep(56 * time.Second) // 61
		require.Equal(t, []time.Duration{5 * time.Second, 30 * time.Second, time.Minute}, got())
		r.need("llama", false)
		time.Sleep(40 * time.Second) // 101
		require.Len(t, got(), 3)
		r.need("llama", true)
		require.Equal(t, 101*time.Second, got()[3])
		require.Empty(t, other())

		late, endLate := r.pushes(t, map[string]string{"model": "llama"})
		require.Equal(t, []time.Duration{0}, late())
		for _, end := range []func() error{end, endOther, endLate} {
			require.Equal(t, codes.Canceled, status.Code(end()))
		}
		synctest.Wait()
		r.keda.mu.Lock()
		defer r.keda.mu.Unlock()
		require.Empty(t, r.keda.watchers)
	})
}

// The end of a window is reported by nobody: the stream believes that the model is
// active when it is wanted again.
func TestAWishAfterTheWindowIsPushedAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newKEDARig(t)
		r.Touch("llama")
		got, end := r.pushes(t, map[string]string{"model": "llama", "window": "3s"})
		require.Len(t, got(), 1)
		time.Sleep(10 * time.Second)
		r.need("llama", true)
		require.Equal(t, []time.Duration{0, 10 * time.Second}, got())
		require.Equal(t, codes.Canceled, status.Code(end()))
	})
}

func TestAModelThatIsUsedIsPushedWithoutAWish(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newKEDARig(t)
		got, end := r.pushes(t, map[string]string{"model": "llama"})
		time.Sleep(time.Second)
		r.Touch("llama")
		r.keda.Changed("llama")
		require.Equal(t, []time.Duration{time.Second}, got())
		require.Equal(t, codes.Canceled, status.Code(end()))
	})
}

func TestManyScaledObjectsShareOneServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newKEDARig(t)
		var gots []func() []time.Duration
		for i := range 200 {
			model := fmt.Sprint("m", i)
			r.mu.Lock()
			r.known[model] = "chat"
			r.mu.Unlock()
			got, end := r.pushes(t, map[string]string{"model": model})
			t.Cleanup(func() { require.Error(t, end()) })
			gots = append(gots, got)
		}
		time.Sleep(time.Second)
		r.need("m7", true)
		for i, got := range gots {
			if i == 7 {
				require.Equal(t, []time.Duration{time.Second}, got())
			} else {
				require.Empty(t, got())
			}
		}
	})
}

func TestStopEndsStreamsCleanly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newKEDARig(t)
		_, end := r.pushes(t, map[string]string{"model": "llama"})
		specs, err := r.StreamMetricSpec(t.Context(), ref(map[string]string{"model": "llama"}))
		require.NoError(t, err)
		_, err = specs.Recv()
		require.NoError(t, err)
		r.keda.Stop()
		require.ErrorIs(t, end(), io.EOF)
		_, err = specs.Recv()
		require.ErrorIs(t, err, io.EOF)
	})
}

func TestAModelThatLeavesTheMapEndsItsStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newKEDARig(t)
		_, end := r.pushes(t, map[string]string{"model": "llama"})
		synctest.Wait()
		r.mu.Lock()
		delete(r.known, "llama")
		r.mu.Unlock()
		time.Sleep(31 * time.Second)
		require.Equal(t, codes.InvalidArgument, status.Code(end()))
	})
}

func TestTheMetricIsTheDemandAndAtLeastOneWhileActive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newKEDARig(t)
		meta := map[string]string{"model": "llama", "threshold": "2.5"}
		spec, err := r.GetMetricSpec(t.Context(), ref(meta))
		require.NoError(t, err)
		require.Len(t, spec.GetMetricSpecs(), 1)
		require.Equal(t, MetricName, spec.GetMetricSpecs()[0].GetMetricName())
		require.InDelta(t, 2.5, spec.GetMetricSpecs()[0].GetTargetSizeFloat(), 0)
		require.EqualValues(t, 3, spec.GetMetricSpecs()[0].GetTargetSize())
		stream, err := r.StreamMetricSpec(t.Context(), ref(meta))
		require.NoError(t, err)
		first, err := stream.Recv()
		require.NoError(t, err)
		require.Equal(t, spec.String(), first.String())

		value := func() float64 {
			t.Helper()
			got, err := r.GetMetrics(t.Context(), &externalscaler.GetMetricsRequest{ScaledObjectRef: ref(meta), MetricName: MetricName})
			require.NoError(t, err)
			require.Len(t, got.GetMetricValues(), 1)
			require.Equal(t, MetricName, got.GetMetricValues()[0].GetMetricName())
			require.InDelta(t, got.GetMetricValues()[0].GetMetricValueFloat(), got.GetMetricValues()[0].GetMetricValue(), 0)
			return got.GetMetricValues()[0].GetMetricValueFloat()
		}
		require.Zero(t, value())
		r.Touch("llama")
		require.InDelta(t, 1, value(), 0)
		r.mu.Lock()
		r.demand["llama"] = 7
		r.mu.Unlock()
		require.InDelta(t, 7, value(), 0)

		_, err = r.GetMetrics(t.Context(), &externalscaler.GetMetricsRequest{ScaledObjectRef: ref(meta), MetricName: "queue"})
		require.Equal(t, codes.InvalidArgument, status.Code(err))
		require.ErrorContains(t, err, "queue")
	})
}

func TestBadMetadataIsRefusedByEveryMethod(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		meta map[string]string
		want string
	}{
		"no model":        {map[string]string{"Model": "llama"}, "entry model"},
		"unknown model":   {map[string]string{"model": "gpt-5"}, `"gpt-5"`},
		"of another kind": {map[string]string{"model": "llama", "kind": "rerank"}, `"llama" for rerank`},
		"no kind":         {map[string]string{"model": "llama", "kind": "video"}, `"video"`},
		"threshold zero":  {map[string]string{"model": "llama", "threshold": "0"}, "threshold"},
		"threshold tiny":  {map[string]string{"model": "llama", "threshold": "0.0009"}, "threshold"},
		"threshold NaN":   {map[string]string{"model": "llama", "threshold": "NaN"}, "threshold"},
		"threshold Inf":   {map[string]string{"model": "llama", "threshold": "+Inf"}, "threshold"},
		"threshold word":  {map[string]string{"model": "llama", "threshold": "one"}, `"one"`},
		"window unitless": {map[string]string{"model": "llama", "window": "120"}, `"120"`},
		"window zero":     {map[string]string{"model": "llama", "window": "0s"}, "window"},
		"window too long": {map[string]string{"model": "llama", "window": "61m"}, "window"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newKEDARig(t)
			_, isActive := r.IsActive(t.Context(), ref(c.meta))
			_, spec := r.GetMetricSpec(t.Context(), ref(c.meta))
			_, metrics := r.GetMetrics(t.Context(), &externalscaler.GetMetricsRequest{ScaledObjectRef: ref(c.meta)})
			push, err := r.StreamIsActive(t.Context(), ref(c.meta))
			require.NoError(t, err)
			_, pushed := push.Recv()
			specs, err := r.StreamMetricSpec(t.Context(), ref(c.meta))
			require.NoError(t, err)
			_, streamed := specs.Recv()
			for _, err := range []error{isActive, spec, metrics, pushed, streamed} {
				require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
				require.ErrorContains(t, err, c.want)
			}
		})
	}
}
