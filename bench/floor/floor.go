// SPDX-License-Identifier: Apache-2.0

// Package floor is the cheapest external processor that can run in place of Holdgate:
// plain grpc-go and go-control-plane types, and no decision about the request.
// Holdgate's cost is measured relative to it.
//
// It answers each message at once: headers with the fixed destination, each chunk of
// the body with the same chunk. It also accepts Envoy's access log, because it runs
// behind Holdgate's own bootstrap.
package floor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	alsv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"
)

// Run serves on the unix socket until ctx ends. Every request is sent to destination,
// an ip:port.
func Run(ctx context.Context, socket, destination string) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("listening on %s: %w", socket, err)
	}
	server := grpc.NewServer()
	extprocv3.RegisterExternalProcessorServer(server, processor{destination: destination})
	alsv3.RegisterAccessLogServiceServer(server, accessLog{})
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	if err := server.Serve(listener); err != nil {
		return fmt.Errorf("serving on %s: %w", socket, err)
	}
	return nil
}

type processor struct {
	extprocv3.UnimplementedExternalProcessorServer
	destination string
}

// Process answers one request's messages in order.
func (p processor) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.Send(p.answer(message)); err != nil {
			return err
		}
	}
}

func (p processor) answer(message *extprocv3.ProcessingRequest) *extprocv3.ProcessingResponse {
	switch request := message.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		return &extprocv3.ProcessingResponse{
			Response:        &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{}},
			DynamicMetadata: p.metadata(request.RequestHeaders),
		}
	case *extprocv3.ProcessingRequest_RequestBody:
		return bodyAnswer(request.RequestBody)
	default:
		return &extprocv3.ProcessingResponse{
			Response: &extprocv3.ProcessingResponse_RequestTrailers{RequestTrailers: &extprocv3.TrailersResponse{}},
		}
	}
}

// metadata has the destination and the length of the body, which Envoy drops in
// full-duplex mode. Without the length the backend would read a chunked body, and the
// floor would not do the same work as Holdgate.
func (p processor) metadata(headers *extprocv3.HttpHeaders) *structpb.Struct {
	fields := map[string]*structpb.Value{
		"first": structpb.NewStringValue(p.destination),
		"mode":  structpb.NewStringValue("native"),
	}
	if length := headerValue(headers.GetHeaders(), "content-length"); length != "" {
		fields["content_length"] = structpb.NewStringValue(length)
	}
	return &structpb.Struct{Fields: map[string]*structpb.Value{
		"holdgate": structpb.NewStructValue(&structpb.Struct{Fields: fields}),
	}}
}

func headerValue(headers *corev3.HeaderMap, name string) string {
	for _, header := range headers.GetHeaders() {
		if header.GetKey() == name {
			return string(header.GetRawValue())
		}
	}
	return ""
}

func bodyAnswer(body *extprocv3.HttpBody) *extprocv3.ProcessingResponse {
	chunk := &extprocv3.StreamedBodyResponse{Body: body.GetBody(), EndOfStream: body.GetEndOfStream()}
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{
		RequestBody: &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{
			BodyMutation: &extprocv3.BodyMutation{
				Mutation: &extprocv3.BodyMutation_StreamedResponse{StreamedResponse: chunk},
			},
		}},
	}}
}

type accessLog struct {
	alsv3.UnimplementedAccessLogServiceServer
}

// StreamAccessLogs reads Envoy's records and discards them.
func (accessLog) StreamAccessLogs(stream alsv3.AccessLogService_StreamAccessLogsServer) error {
	for {
		if _, err := stream.Recv(); err != nil {
			if errors.Is(err, io.EOF) {
				return stream.SendAndClose(&alsv3.StreamAccessLogsResponse{})
			}
			return err
		}
	}
}
