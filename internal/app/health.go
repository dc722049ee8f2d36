// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// liveness is the name under which the health service says that the process answers.
const liveness = "liveness"

// envoyHealth is the health service of the port that Envoy connects to. Under the name liveness a
// router serves as long as it answers, and under the others as /readyz says.
type envoyHealth struct {
	healthpb.UnimplementedHealthServer

	notReady func() string
}

// Check is part of the health service.
func (h envoyHealth) Check(_ context.Context, r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	is := healthpb.HealthCheckResponse_SERVING
	switch r.GetService() {
	case liveness:
	case "", "readiness", extprocv3.ExternalProcessor_ServiceDesc.ServiceName:
		if h.notReady() != "" {
			is = healthpb.HealthCheckResponse_NOT_SERVING
		}
	default:
		return nil, status.Error(codes.NotFound, "unknown service") //nolint:wrapcheck // for the client
	}
	return &healthpb.HealthCheckResponse{Status: is}, nil
}
