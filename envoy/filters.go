// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	grpclogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	headersv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	tometadatav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_to_metadata/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	earlyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/early_header_mutation/header_mutation/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	extProcFilter  = "envoy.filters.http.ext_proc"
	routerFilter   = "envoy.filters.http.router"
	messageTimeout = 5 * time.Second
	logFlush       = 5 * time.Millisecond
	// logPending limits the memory of records that are not sent yet; Envoy drops
	// records beyond it.
	logPending = 1 << 20
)

func (r *renderer) filter(name string, config proto.Message) *hcmv3.HttpFilter {
	return &hcmv3.HttpFilter{
		Name:       name,
		ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: r.pack(config)},
	}
}

// extProc returns the ext_proc filter. The lane's name travels in gRPC metadata, which
// no client can set.
func (r *renderer) extProc(lane string) *hcmv3.HttpFilter {
	service := grpcService(holdgateCluster, &corev3.HeaderValue{Key: LaneMetadata, Value: lane})
	service.Timeout = durationpb.New(0)
	return r.filter(extProcFilter, &extprocv3.ExternalProcessor{
		GrpcService: service,
		// Applies to headers-only requests; a full-duplex body has no timer.
		MessageTimeout: durationpb.New(messageTimeout),
		StatusOnError:  &typev3.HttpStatus{Code: typev3.StatusCode_ServiceUnavailable},
		// Nothing of the response is exchanged: once a request was forwarded, only
		// Envoy handles its answer, which survives a crash of holdgate serve.
		ProcessingMode: &extprocv3.ProcessingMode{
			RequestHeaderMode:   extprocv3.ProcessingMode_SEND,
			RequestBodyMode:     extprocv3.ProcessingMode_FULL_DUPLEX_STREAMED,
			RequestTrailerMode:  extprocv3.ProcessingMode_SEND,
			ResponseHeaderMode:  extprocv3.ProcessingMode_SKIP,
			ResponseBodyMode:    extprocv3.ProcessingMode_NONE,
			ResponseTrailerMode: extprocv3.ProcessingMode_SKIP,
		},
		// The host of a backend replaces the client's.
		MutationRules: &mutationv3.HeaderMutationRules{AllowAllRouting: wrapperspb.Bool(true)},
		MetadataOptions: &extprocv3.MetadataOptions{
			ReceivingNamespaces:  &extprocv3.MetadataOptions_MetadataNamespaces{Untyped: []string{Namespace}},
			ForwardingNamespaces: r.forwardedNamespaces(lane),
		},
	})
}

// streamIDFilters give each request an id that no client can choose, in a header for
// Holdgate and in metadata for the access log. Envoy's own %STREAM_ID% is the request
// id, which a client may send.
func (r *renderer) streamIDFilters() []*hcmv3.HttpFilter {
	return []*hcmv3.HttpFilter{
		r.filter("envoy.filters.http.header_mutation", &headersv3.HeaderMutation{
			Mutations: &headersv3.Mutations{RequestMutations: []*mutationv3.HeaderMutation{setHeader(StreamHeader, "%UNIQUE_ID%")}},
		}),
		r.headerToMetadata(StreamHeader, StreamKey, false),
	}
}

func (r *renderer) router() *hcmv3.HttpFilter {
	return r.filter(routerFilter, &routerv3.Router{SuppressEnvoyHeaders: true})
}

// grpcLog returns an access log that sends records a few milliseconds after the end of
// their requests. A buffer of one byte would send them at once, but Envoy would drop
// them whenever the connection is behind.
func (r *renderer) grpcLog(name string) *accesslogv3.AccessLog {
	return &accesslogv3.AccessLog{
		Name:   "envoy.access_loggers.http_grpc",
		Filter: notHealthCheck(),
		ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: r.pack(&grpclogv3.HttpGrpcAccessLogConfig{
			CommonConfig: &grpclogv3.CommonGrpcAccessLogConfig{
				LogName:             name,
				TransportApiVersion: corev3.ApiVersion_V3,
				GrpcService:         grpcService(logCluster),
				BufferSizeBytes:     wrapperspb.UInt32(logPending),
				BufferFlushInterval: durationpb.New(logFlush),
			},
		})},
	}
}

// destinationFromHeader copies the relay's destination header to the metadata. It
// removes the header itself, because a route's request_headers_to_remove would act
// before the cluster reads it.
func (r *renderer) destinationFromHeader() *hcmv3.HttpFilter {
	return r.headerToMetadata(DestinationHeader, FirstKey, true)
}

// headerToMetadata copies a header to a key of Namespace.
func (r *renderer) headerToMetadata(header, key string, remove bool) *hcmv3.HttpFilter {
	return r.filter("envoy.filters.http.header_to_metadata", &tometadatav3.Config{
		RequestRules: []*tometadatav3.Config_Rule{{
			Header: header,
			OnHeaderPresent: &tometadatav3.Config_KeyValuePair{
				MetadataNamespace: Namespace,
				Key:               key,
			},
			Remove: remove,
		}},
	})
}

// dropForgedHeaders removes headers that only Holdgate's own lanes may set, before any
// filter, log or route sees the request.
func (r *renderer) dropForgedHeaders() *corev3.TypedExtensionConfig {
	return r.dropHeaders(DestinationHeader, FlagsHeader, FailedHeader, SNIHeader)
}

// dropHeaders removes headers of requests before any filter sees them.
func (r *renderer) dropHeaders(names ...string) *corev3.TypedExtensionConfig {
	config := &earlyv3.HeaderMutation{}
	for _, name := range names {
		config.Mutations = append(config.Mutations, removeHeader(name))
	}
	return &corev3.TypedExtensionConfig{Name: "envoy.http.early_header_mutation.header_mutation", TypedConfig: r.pack(config)}
}
