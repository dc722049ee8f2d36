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
	// DefaultWindow is how long a model counts as active after a request was
	// routed to it, unless the metadata says otherwise.
	DefaultWindow = 2 * time.Minute
	// MaxWindow is the longest window that the metadata may ask for.
	MaxWindow = time.Hour
	// MetricName is the one metric that the scaler has. It has no name of a model
	// in it, because it becomes a part of a path in the Kubernetes API.
	MetricName = "holdgate-demand"
	// repeat is the time after which a stream is told again what still holds.
	repeat = 30 * time.Second
)

// Models is what the scaler asks about a model.
type Models interface {
	// Known says whether the model can be woken here, through the kind of endpoint
	// that is named, or through any when kind is empty.
	Known(model, kind string) bool
	// Wanted says whether the model should be up: somebody waits for it, or did a
	// moment ago, or it was asked for ahead of traffic.
	Wanted(model string) bool
	// Demand is how many requests ask for it at once.
	Demand(model string) int
	// Active says whether the model is wanted, has requests in flight, or had one
	// routed to it in the window that has just passed.
	Active(model string, window time.Duration) bool
}

// KEDAOptions is what a scaler needs.
type KEDAOptions struct {
	Models Models
	Log    zerolog.Logger
}

// KEDA is an external scaler of KEDA's, for any number of ScaledObjects. Each
// names its model in the metadata of its trigger.
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

// NewKEDA makes a scaler.
func NewKEDA(o KEDAOptions) *KEDA {
	return &KEDA{
		models: o.Models, log: o.Log, stopped: make(chan struct{}),
		watchers: map[string]map[chan struct{}]struct{}{},
	}
}

// Changed has the streams of the model look at it. It must be called after each
// change of the model's wish.
func (k *KEDA) Changed(model string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for look := range k.watchers[model] {
		select {
		case look <- struct{}{}:
		default: // it has not looked yet, and will see this change too
		}
	}
}

// Stop ends the streams, and those that come. KEDA 2.21 comes back after two
// seconds when a stream ends cleanly; after an error it waits ever longer, up to a
// minute, so Stop should be called before the gRPC server is stopped.
func (k *KEDA) Stop() { k.stop.Do(func() { close(k.stopped) }) }

// IsActive says whether the model should have a replica.
func (k *KEDA) IsActive(_ context.Context, ref *externalscaler.ScaledObjectRef) (*externalscaler.IsActiveResponse, error) {
	t, err := k.trigger(ref)
	if err != nil {
		return nil, err
	}
	return &externalscaler.IsActiveResponse{Result: k.look(t).active}, nil
}

// StreamIsActive sends true when the model becomes active or wanted, and again
// every 30 seconds while it is active. It never sends false: KEDA would take the
// model down although another trigger of its ScaledObject may be active.
func (k *KEDA) StreamIsActive(ref *externalscaler.ScaledObjectRef, stream grpc.ServerStreamingServer[externalscaler.IsActiveResponse]) error {
	t, err := k.trigger(ref)
	if err != nil {
		return err
	}
	log := k.log.With().Str("namespace", ref.GetNamespace()).Str("scaled_object", ref.GetName()).Str("model", t.model).Logger()
	log.Debug().Msg("KEDA watches the model")
	defer log.Debug().Msg("KEDA watches the model no longer")

	// The stream must be told of changes before its first look.
	changed := k.watch(t.model)
	defer k.unwatch(t.model, changed)
	again := time.NewTicker(repeat)
	defer again.Stop()
	var seen level
	for due := true; ; {
		if err := k.check(t); err != nil {
			return err
		}
		now := k.look(t)
		if now.active && (due || now.above(seen)) {
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

// GetMetricSpec gives the metric and its target: the threshold of the metadata.
func (k *KEDA) GetMetricSpec(_ context.Context, ref *externalscaler.ScaledObjectRef) (*externalscaler.GetMetricSpecResponse, error) {
	t, err := k.trigger(ref)
	if err != nil {
		return nil, err
	}
	return t.spec(), nil
}

// StreamMetricSpec sends what GetMetricSpec gives. It changes only with the
// ScaledObject, for which KEDA opens another stream, so nothing follows.
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

// GetMetrics gives the demand, and at least 1 while the model is active: a model
// whose requests are all being answered still needs its replica.
func (k *KEDA) GetMetrics(_ context.Context, req *externalscaler.GetMetricsRequest) (*externalscaler.GetMetricsResponse, error) {
	t, err := k.trigger(req.GetScaledObjectRef())
	if err != nil {
		return nil, err
	}
	if name := req.GetMetricName(); name != "" && name != MetricName {
		return nil, status.Errorf(codes.InvalidArgument, "there is no metric %q: the one there is has the name %s", name, MetricName)
	}
	value := k.models.Demand(t.model)
	if k.look(t).active {
		value = max(value, 1)
	}
	return &externalscaler.GetMetricsResponse{MetricValues: []*externalscaler.MetricValue{{
		MetricName: MetricName, MetricValue: int64(value), MetricValueFloat: float64(value),
	}}}, nil
}

// level is what a stream saw.
type level struct{ active, wanted bool }

// above is the edge: something holds that did not hold before. The end of a
// window is no change that anybody reports, so active alone could hide that the
// model fell asleep and is wanted again.
func (l level) above(before level) bool {
	return l.active && !before.active || l.wanted && !before.wanted
}

func (k *KEDA) look(t trigger) level {
	wanted := k.models.Wanted(t.model)
	return level{active: wanted || k.models.Active(t.model, t.window), wanted: wanted}
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

// spec gives the target in both fields: an older KEDA reads only the whole number.
func (t trigger) spec() *externalscaler.GetMetricSpecResponse {
	return &externalscaler.GetMetricSpecResponse{MetricSpecs: []*externalscaler.MetricSpec{{
		MetricName: MetricName, TargetSize: int64(math.Ceil(t.threshold)), TargetSizeFloat: t.threshold,
	}}}
}
