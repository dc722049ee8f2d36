// SPDX-License-Identifier: Apache-2.0

package wake

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/kedacore/keda/v2/pkg/scalers/externalscaler"
	"github.com/rs/zerolog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// DefaultWindow is how long a model is active after a request was routed to it, unless
	// the metadata says otherwise.
	DefaultWindow = 2 * time.Minute
	// MaxWindow is the longest window that the metadata may set.
	MaxWindow = time.Hour
	// MetricName is the only metric of the scaler. It does not contain the model's name,
	// because it becomes a part of a path in the Kubernetes API.
	MetricName = "holdgate-demand"
	// repeat is the interval at which an unchanged state is sent again.
	repeat = 30 * time.Second
)

// Models is the state of the models.
type Models interface {
	// Known reports whether the model can be woken here by requests of a kind, or of any
	// kind if kind is empty.
	Known(model, kind string) bool
	// Wanted reports whether the model should be up: requests wait for it or did so
	// recently, or it was woken ahead of requests.
	Wanted(model string) bool
	// Demand returns how many distinct requests wait for the model.
	Demand(model string) int
	// Active reports whether the model is wanted, has requests in flight, or had one
	// routed to it within the last window.
	Active(model string, window time.Duration) bool
}

// KEDAOptions are the options of a scaler.
type KEDAOptions struct {
	Models Models
	Log    zerolog.Logger
}

// KEDA is an external scaler for KEDA, for any number of ScaledObjects. Each names its
// model in the metadata of its trigger.
type KEDA struct {
	externalscaler.UnimplementedExternalScalerServer

	models  Models
	log     zerolog.Logger
	stopped chan struct{}
	stop    sync.Once

	mu       sync.Mutex
	watchers map[string]map[chan struct{}]struct{} // by model
}

var _ externalscaler.ExternalScalerServer = (*KEDA)(nil)

// NewKEDA returns a scaler.
func NewKEDA(o KEDAOptions) *KEDA {
	return &KEDA{
		models: o.Models, log: o.Log, stopped: make(chan struct{}),
		watchers: map[string]map[chan struct{}]struct{}{},
	}
}

// Changed makes the streams of the model check its state. It must be called after each
// change of the model's need.
func (k *KEDA) Changed(model string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for changed := range k.watchers[model] {
		select {
		case changed <- struct{}{}:
		default: // it has yet to check for an earlier change, and will see this one too
		}
	}
}

// Stop ends all streams, including those that are opened later. KEDA 2.21 reconnects two
// seconds after a stream ended cleanly; after an error it waits longer each time, up to a
// minute. So Stop should be called before the gRPC server is stopped.
func (k *KEDA) Stop() { k.stop.Do(func() { close(k.stopped) }) }

// IsActive returns whether the model should have a replica.
func (k *KEDA) IsActive(_ context.Context, ref *externalscaler.ScaledObjectRef) (*externalscaler.IsActiveResponse, error) {
	t, err := k.trigger(ref)
	if err != nil {
		return nil, err
	}
	return &externalscaler.IsActiveResponse{Result: k.activity(t).active}, nil
}

// StreamIsActive sends true when the model becomes active or wanted, and again every 30
// seconds while it is active. It never sends false: KEDA would scale the model down even if
// another trigger of its ScaledObject is active.
func (k *KEDA) StreamIsActive(ref *externalscaler.ScaledObjectRef, stream grpc.ServerStreamingServer[externalscaler.IsActiveResponse]) error {
	t, err := k.trigger(ref)
	if err != nil {
		return err
	}
	log := k.log.With().Str("namespace", ref.GetNamespace()).Str("scaled_object", ref.GetName()).Str("model", t.model).Logger()
	log.Debug().Msg("KEDA watches the model")
	defer log.Debug().Msg("KEDA watches the model no longer")

	// Register for changes before the first check.
	changed := k.watch(t.model)
	defer k.unwatch(t.model, changed)
	again := time.NewTicker(repeat)
	defer again.Stop()
	var seen activity
	for due := true; ; {
		if err := k.check(t); err != nil {
			return err
		}
		now := k.activity(t)
		if now.active && (due || now.roseSince(seen)) {
			if err := stream.Send(&externalscaler.IsActiveResponse{Result: true}); err != nil {
				return err
			}
		}
		seen, due = now, false
		select {
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-k.stopped:
			return nil
		case <-changed:
		case <-again.C:
			due = true
		}
	}
}

// GetMetricSpec returns the metric and its target, the threshold of the metadata.
func (k *KEDA) GetMetricSpec(_ context.Context, ref *externalscaler.ScaledObjectRef) (*externalscaler.GetMetricSpecResponse, error) {
	t, err := k.trigger(ref)
	if err != nil {
		return nil, err
	}
	return t.spec(), nil
}

// StreamMetricSpec sends the response of GetMetricSpec once. It changes only with the
// ScaledObject, and then KEDA opens another stream.
func (k *KEDA) StreamMetricSpec(ref *externalscaler.ScaledObjectRef, stream grpc.ServerStreamingServer[externalscaler.GetMetricSpecResponse]) error {
	t, err := k.trigger(ref)
	if err != nil {
		return err
	}
	if err := stream.Send(t.spec()); err != nil {
		return err
	}
	select {
	case <-stream.Context().Done():
		return status.FromContextError(stream.Context().Err()).Err()
	case <-k.stopped:
		return nil
	}
}

// GetMetrics returns the demand, and at least 1 while the model is active: a model whose
// requests are all being answered still needs its replica.
func (k *KEDA) GetMetrics(_ context.Context, req *externalscaler.GetMetricsRequest) (*externalscaler.GetMetricsResponse, error) {
	t, err := k.trigger(req.GetScaledObjectRef())
	if err != nil {
		return nil, err
	}
	if name := req.GetMetricName(); name != "" && name != MetricName {
		return nil, status.Errorf(codes.InvalidArgument, "there is no metric %q: the only one is %s", name, MetricName)
	}
	value := k.models.Demand(t.model)
	if k.activity(t).active {
		value = max(value, 1)
	}
	return &externalscaler.GetMetricsResponse{MetricValues: []*externalscaler.MetricValue{{
		MetricName: MetricName, MetricValue: int64(value), MetricValueFloat: float64(value),
	}}}, nil
}

// activity is the state of a model as a stream last saw it.
type activity struct{ active, wanted bool }

// roseSince reports whether the model became active or wanted since before. The end of a
// window causes no notification, so active alone could miss that the model became inactive
// and is wanted again.
func (a activity) roseSince(before activity) bool {
	return a.active && !before.active || a.wanted && !before.wanted
}

func (k *KEDA) activity(t trigger) activity {
	wanted := k.models.Wanted(t.model)
	return activity{active: wanted || k.models.Active(t.model, t.window), wanted: wanted}
}

func (k *KEDA) watch(model string) chan struct{} {
	c := make(chan struct{}, 1)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.watchers[model] == nil {
		k.watchers[model] = map[chan struct{}]struct{}{}
	}
	k.watchers[model][c] = struct{}{}
	return c
}

func (k *KEDA) unwatch(model string, c chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.watchers[model], c)
	if len(k.watchers[model]) == 0 {
		delete(k.watchers, model)
	}
}

// spec returns the metric's target. It sets both fields for the size, since older versions of
// KEDA read only the integer.
func (t trigger) spec() *externalscaler.GetMetricSpecResponse {
	return &externalscaler.GetMetricSpecResponse{MetricSpecs: []*externalscaler.MetricSpec{{
		MetricName: MetricName, TargetSize: int64(math.Ceil(t.threshold)), TargetSizeFloat: t.threshold,
	}}}
}
