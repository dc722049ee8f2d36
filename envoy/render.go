// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"errors"
	"fmt"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	overloadv3 "github.com/envoyproxy/go-control-plane/envoy/config/overload/v3"
	heapv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/fixed_heap/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

// The listeners of a rendered bootstrap.
const (
	edgeListener   = "edge"
	reholdListener = "rehold"
	relayListener  = "relay"
)

// renderer collects errors while messages are packed, so that the tree can be written
// as one expression.
type renderer struct {
	config    Config
	addresses addresses
	errs      []error
}

// Render returns the bootstrap for c. Where c is bad, the error is settings.Problems:
// every problem, by the field's name.
func Render(c Config) (*bootstrapv3.Bootstrap, error) {
	c = c.withDefaults()
	a, err := c.parse()
	if err != nil {
		return nil, err
	}
	r := &renderer{config: c, addresses: a}
	b := &bootstrapv3.Bootstrap{
		Node:            r.node(),
		Admin:           &bootstrapv3.Admin{Address: a.admin.listenAddress()},
		OverloadManager: r.overload(),
		StaticResources: &bootstrapv3.Bootstrap_StaticResources{
			Listeners: r.listeners(),
			Clusters:  r.clusters(),
		},
	}
	if err := errors.Join(r.errs...); err != nil {
		return nil, err
	}
	if err := b.ValidateAll(); err != nil {
		return nil, fmt.Errorf("checking the rendered bootstrap: %w", err)
	}
	return b, nil
}

// pack returns m as an Any, whose bytes are the same each time.
func (r *renderer) pack(m proto.Message) *anypb.Any {
	packed := &anypb.Any{}
	if err := anypb.MarshalFrom(packed, m, proto.MarshalOptions{Deterministic: true}); err != nil {
		r.errs = append(r.errs, fmt.Errorf("packing %s: %w", m.ProtoReflect().Descriptor().FullName(), err))
	}
	return packed
}

// overload limits Envoy's memory. A streamed local response is not flow-controlled
// towards a slow client, so Envoy buffers it: under memory pressure the streams with
// the largest buffers are reset first.
func (r *renderer) overload() *overloadv3.OverloadManager {
	const heap = "envoy.resource_monitors.fixed_heap"
	return &overloadv3.OverloadManager{
		RefreshInterval:     durationpb.New(heapRefresh),
		BufferFactoryConfig: &overloadv3.BufferFactoryConfig{MinimumAccountToTrackPowerOfTwo: 20},
		ResourceMonitors: []*overloadv3.ResourceMonitor{{
			Name:       heap,
			ConfigType: &overloadv3.ResourceMonitor_TypedConfig{TypedConfig: r.pack(&heapv3.FixedHeapConfig{MaxHeapSizeBytes: r.config.HeapBytes})},
		}},
		Actions: []*overloadv3.OverloadAction{
			{
				Name: "envoy.overload_actions.reset_high_memory_stream",
				Triggers: []*overloadv3.Trigger{{
					Name: heap,
					TriggerOneof: &overloadv3.Trigger_Scaled{Scaled: &overloadv3.ScaledTrigger{
						ScalingThreshold: 0.80, SaturationThreshold: 0.98,
					}},
				}},
			},
			{
				Name: "envoy.overload_actions.stop_accepting_requests",
				Triggers: []*overloadv3.Trigger{{
					Name:         heap,
					TriggerOneof: &overloadv3.Trigger_Threshold{Threshold: &overloadv3.ThresholdTrigger{Value: 0.99}},
				}},
			},
		},
	}
}

// address returns e as an Envoy message.
func (e endpoint) address() *corev3.Address {
	if e.pipe != "" {
		return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: e.pipe}}}
	}
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address:       e.host,
		PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: e.port},
	}}}
}

// listenAddress returns the address of a listener. Only Envoy's own user may connect to
// its sockets.
func (e endpoint) listenAddress() *corev3.Address {
	address := e.address()
	if pipe := address.GetPipe(); pipe != nil {
		pipe.Mode = laneMode
	}
	return address
}

// grpcService returns a gRPC stream to a cluster of holdgate serve, without a deadline.
func grpcService(cluster string, metadata ...*corev3.HeaderValue) *corev3.GrpcService {
	return &corev3.GrpcService{
		TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: cluster}},
		InitialMetadata: metadata,
	}
}
