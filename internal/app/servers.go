// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/kedacore/keda/v2/pkg/scalers/externalscaler"
	"github.com/rs/zerolog"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/internal/admin"
	"github.com/holdgate/holdgate/internal/certs"
	"github.com/holdgate/holdgate/internal/config"
	"github.com/holdgate/holdgate/internal/reload"
)

// newAdmin returns the server of the admin API.
func (a *App) newAdmin() (*http.Server, error) {
	tokens, err := config.ReadTokens(a.c.AdminTokenFile)
	if err != nil {
		return nil, fmt.Errorf("--admin-token-file: %w", err)
	}
	s := newAdminServer(admin.Handler(admin.Deps{
		Tokens: tokens, Maps: a.maps, Metrics: a.prometheus, Ready: a.notReady, Warning: a.warning,
		Explain: a.decider.Explain, Status: a.status, SiteStatus: a.siteStatus().Now, Wake: a.wakeModel, WakeFailed: a.wakeFailed, Events: a.events, Log: a.log,
	}))
	s.RegisterOnShutdown(a.events.Close)
	return s, nil
}

// newKEDAServer returns the server for KEDA, nil without --keda-listen.
func (a *App) newKEDAServer(files *reload.Metrics) (*grpc.Server, error) {
	if a.c.KEDAListen == "" {
		return nil, nil
	}
	tls, err := a.tlsOptions(kedaCerts(a.c), files)
	if err != nil {
		return nil, err
	}
	s := grpc.NewServer(slices.Concat(grpcLimits(), tls)...)
	externalscaler.RegisterExternalScalerServer(s, a.notifiers.keda)
	a.health.SetServingStatus(externalscaler.ExternalScaler_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(s, a.health)
	return s, nil
}

// newAgentServer returns the server for agents.
func (a *App) newAgentServer(files *reload.Metrics) (*grpc.Server, error) {
	options, err := a.tlsOptions(agentCerts(a.c), files)
	if err != nil {
		return nil, err
	}
	tokens, err := a.agentTokens(files)
	if err != nil {
		return nil, err
	}
	options = append(options, grpc.ChainStreamInterceptor(logRefused(a.log), agentreg.TokenAuth(tokens)))
	s := grpc.NewServer(slices.Concat(grpcLimits(), options, a.registry.ServerOptions())...)
	agentregpb.RegisterAgentRegistryServer(s, a.registry.Service())
	a.health.SetServingStatus(agentregpb.AgentRegistry_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(s, a.health)
	if a.c.AgentsReflection {
		reflection.Register(s)
	}
	return s, nil
}

// logRefused returns an interceptor that logs agents that are not authenticated: after the
// first ten at most one per second, since any client of the port can cause a line.
func logRefused(log zerolog.Logger) grpc.StreamServerInterceptor {
	limit := rate.NewLimiter(rate.Every(time.Second), 10)
	return func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		err := handler(srv, ss)
		if status.Code(err) == codes.Unauthenticated && limit.Allow() {
			event := log.Warn().Str("cause", status.Convert(err).Message())
			if p, ok := peer.FromContext(ss.Context()); ok {
				event = event.Stringer("peer", p.Addr)
			}
			event.Msg("agent refused")
		}
		return err
	}
}

// agentTokens returns a function that returns the agents' tokens in force.
func (a *App) agentTokens(files *reload.Metrics) (func() []string, error) {
	path := a.c.AgentsTokenFile
	if path == "" {
		return func() []string { return nil }, nil
	}
	parse := func(text []byte, _ *[]string) (*[]string, error) {
		tokens, err := config.ParseTokens(text)
		return &tokens, err
	}
	file, err := reload.Load(path, parse, reload.Options{Setting: "agents-token-file", Metrics: files, Log: a.log})
	if err != nil {
		return nil, err
	}
	a.watched = append(a.watched, file)
	return func() []string { return *file.Current() }, nil
}

// tlsOptions returns the options for a server with TLS; none without a certificate.
func (a *App) tlsOptions(f certs.Files, files *reload.Metrics) ([]grpc.ServerOption, error) {
	if f.Cert.Path == "" {
		return nil, nil
	}
	server, err := certs.Load(f, reload.Options{Metrics: files, Log: a.log})
	if err != nil {
		return nil, err
	}
	a.watched = append(a.watched, server)
	return []grpc.ServerOption{grpc.Creds(server.Credentials(a.log.With().Str("setting", f.Cert.Setting).Logger()))}, nil
}

func agentCerts(c *config.Serve) certs.Files {
	return certs.Files{
		Cert:     certs.File{Setting: "agents-tls-cert-file", Path: c.AgentsTLSCertFile},
		Key:      certs.File{Setting: "agents-tls-key-file", Path: c.AgentsTLSKeyFile},
		ClientCA: certs.File{Setting: "agents-client-ca-file", Path: c.AgentsClientCAFile},
	}
}

func extProcCerts(c *config.Serve) certs.Files {
	return certs.Files{
		Cert:     certs.File{Setting: "extproc-tls-cert-file", Path: c.ExtProcTLSCertFile},
		Key:      certs.File{Setting: "extproc-tls-key-file", Path: c.ExtProcTLSKeyFile},
		ClientCA: certs.File{Setting: "extproc-client-ca-file", Path: c.ExtProcClientCAFile},
		// A gateway may not be able to set the version of TLS.
		ClientNames: c.ExtProcClientNames, TLS12: true,
	}
}

func kedaCerts(c *config.Serve) certs.Files {
	return certs.Files{
		Cert: certs.File{Setting: "keda-tls-cert-file", Path: c.KEDATLSCertFile},
		Key:  certs.File{Setting: "keda-tls-key-file", Path: c.KEDATLSKeyFile},
	}
}
