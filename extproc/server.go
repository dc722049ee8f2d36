// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"crypto/rand"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/rs/zerolog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/holdgate/holdgate/extproc/wire"
	"github.com/holdgate/holdgate/internal/refusal"
	"github.com/holdgate/holdgate/internal/ticket"
)

// Options are the settings of the data path.
type Options struct {
	Keepalive         time.Duration // interval between keepalives to a held request; 0: none
	RequestTimeout    time.Duration // how long a request may wait for a slot
	AdmitPark         time.Duration // how long a request that was not held may wait for a reservation
	MaxRequestBytes   int64         // of one body
	MaxBodyBytesTotal int64         // of all bodies together; over it, reading pauses
	RelayMaxBytes     int64         // of one relayed answer
	LateError         LateError
	// CORSOrigins are the origins whose web pages may call; * allows all.
	CORSOrigins []string
	// IdentityMetadata is the path in Envoy's dynamic metadata where another filter writes
	// the caller's identity: a namespace, then keys of nested structs; nil: none does.
	IdentityMetadata []string
}

// Deps are the collaborators. All but NotReady, Others, Relay and Gateway are required.
type Deps struct {
	// NotReady returns the reason why load balancers should send no requests, or an empty
	// string when they may.
	NotReady func() string
	Decider  Decider
	Observer Observer
	// Others are the processes that share Envoy with this one: see MoveLogs. Nil: there are
	// none.
	Others Others
	Wakes  refusal.Wakes // for Retry-After
	// Relay leads to Envoy's relay lane, and Gateway to the gateway's listener for clients.
	// Requests for which the one that they need is nil get no keepalives.
	Relay, Gateway http.RoundTripper
	Tickets        *ticket.Office // for requests that come back through a gateway
	Log            zerolog.Logger
}

// Server serves ext_proc and access-log streams.
type Server struct {
	extprocv3.UnimplementedExternalProcessorServer
	o       Options
	d       Deps
	flights flights
	holds   atomic.Int64 // open passes whose request waits or has waited
	bodies  memory
	logs    logStreams
	// gateways are the Envoys whose streams name no lane.
	gateways gateways
	streamed streamed
	name     string    // random: this process among those that requests pass
	noLog    sync.Once // requests were sent on without a slot
	moving   chan struct{}
	closing  chan struct{}
}

// New makes a server.
func New(o Options, d Deps) *Server {
	return &Server{o: o, d: d, name: rand.Text(), bodies: newMemory(o.MaxBodyBytesTotal, o.MaxRequestBytes), moving: make(chan struct{}), closing: make(chan struct{})}
}

// Register adds the services to g, which must have been made with ServerOptions.
func (s *Server) Register(g *grpc.Server) {
	extprocv3.RegisterExternalProcessorServer(g, s)
	accesslogv3.RegisterAccessLogServiceServer(g, &accessLog{s: s})
}

// ServerOptions are the options of the gRPC server that Envoy calls.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(wire.Codec()),
		experimental.BufferPool(wire.Buffers),
		// Fixed windows: an upload that is not read yet stays in Envoy, and no
		// bandwidth estimation runs.
		grpc.StaticStreamWindowSize(256 << 10),
		grpc.StaticConnWindowSize(16 << 20),
		grpc.MaxRecvMsgSize(4 << 20), // Envoy's chunks have 64 KiB
		// One stream is one request; Envoy opens a connection per 1,024 of them.
		grpc.MaxConcurrentStreams(1 << 20),
		// A connection with too many pings would be closed with all of its requests. Envoy's
		// connection_keepalive is often 10 s, and may be 1 s.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 500 * time.Millisecond, PermitWithoutStream: true}),
	}
}

// Process serves one pass of a request.
func (s *Server) Process(gs extprocv3.ExternalProcessor_ProcessServer) (err error) {
	p := &pass{s: s, gs: gs, upload: upload{share: share{m: s.bodies}}}
	defer func() {
		if cause := recover(); cause != nil {
			// Envoy answers with status_on_error.
			s.d.Log.Error().Interface("panic", cause).Bytes("stack", debug.Stack()).Msg("panic while serving a request")
			err = status.Error(codes.Internal, "internal error")
		}
		p.close()
	}()
	return p.run()
}
