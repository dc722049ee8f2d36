// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"net"
	"net/http"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	extauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
)

// authz allows every request, and identifies the caller by a cookie.
type authz struct {
	authv3.UnimplementedAuthorizationServer
	identities map[string]*structpb.Struct // by cookie
}

func (a authz) Check(_ context.Context, r *authv3.CheckRequest) (*authv3.CheckResponse, error) {
	cookie := r.GetAttributes().GetRequest().GetHttp().GetHeaders()["cookie"]
	return &authv3.CheckResponse{
		HttpResponse:    &authv3.CheckResponse_OkResponse{OkResponse: &authv3.OkHttpResponse{}},
		DynamicMetadata: a.identities[cookie],
	}, nil
}

// start serves until the test ends, and returns the address.
func (a authz) start(t *testing.T) *net.TCPAddr {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer()
	authv3.RegisterAuthorizationServer(s, a)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return l.Addr().(*net.TCPAddr)
}

// extAuthz adds an ext_authz filter that calls the server at an address, and its
// cluster.
func extAuthz(t *testing.T, b *bootstrapv3.Bootstrap, at *net.TCPAddr) {
	t.Helper()
	var http2 *anypb.Any // the HTTP/2 options of Holdgate's cluster
	for _, c := range b.GetStaticResources().GetClusters() {
		if c.GetName() == "holdgate" {
			http2 = c.GetTypedExtensionProtocolOptions()["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"]
		}
	}
	require.NotNil(t, http2)
	b.StaticResources.Clusters = append(b.GetStaticResources().GetClusters(), &clusterv3.Cluster{
		Name:                          "authz",
		ConnectTimeout:                durationpb.New(time.Second),
		TypedExtensionProtocolOptions: map[string]*anypb.Any{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": proto.CloneOf(http2)},
		LoadAssignment: &endpointv3.ClusterLoadAssignment{ClusterName: "authz", Endpoints: []*endpointv3.LocalityLbEndpoints{{
			LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
				Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
					Address: at.IP.String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(at.Port)},
				}}},
			}}}},
		}}},
	})
	config, err := anypb.New(&extauthzv3.ExtAuthz{
		TransportApiVersion: corev3.ApiVersion_V3,
		Services: &extauthzv3.ExtAuthz_GrpcService{GrpcService: &corev3.GrpcService{
			TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: "authz"}},
		}},
	})
	require.NoError(t, err)
	insertFilter(t, b, &hcmv3.HttpFilter{Name: "envoy.filters.http.ext_authz", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: config}})
}

// An authorization server can set an identity too; without one the key counts.
func TestWhatExtAuthzSaysIsAnIdentity(t *testing.T) {
	acme, err := structpb.NewStruct(map[string]any{"tenant": "acme", "key_id": "session-1", "models": "m, other"})
	require.NoError(t, err)
	at := authz{identities: map[string]*structpb.Struct{"s=1": acme}}.start(t)
	s := startFiltered(t, "envoy.filters.http.ext_authz", func(b *bootstrapv3.Bootstrap) { extAuthz(t, b, at) }, "--auth-file", keysFile(t, ""))
	s.register(hello("a", newEngine(t, nil).addr(), 4, "m", "short"))
	id := uuid.NewString()
	r := s.post(chatPath, chatBody("m", false), "Cookie", "s=1", "X-Request-Id", id)
	require.Equal(t, http.StatusOK, r.status, r.body)
	requireFields(t, s.recordOf(id), map[string]any{"tenant_id": "acme", "key_id": "session-1"})
	require.Equal(t, http.StatusForbidden, s.post(chatPath, chatBody("short", false), "Cookie", "s=1").status)
	require.Equal(t, http.StatusUnauthorized, s.post(chatPath, chatBody("m", false), "Cookie", "s=2").status)
	id = uuid.NewString()
	r = s.post(chatPath, chatBody("m", false), "X-Api-Key", apiKey, "X-Request-Id", id)
	require.Equal(t, http.StatusOK, r.status, r.body)
	requireFields(t, s.recordOf(id), map[string]any{"tenant_id": "acme", "key_id": "acme-prod"})
	s.atRest()
}
