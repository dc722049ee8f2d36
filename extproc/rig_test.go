// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	dataaccesslogv3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/extproctest"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/grpctest"
	"github.com/holdgate/holdgate/internal/refusal"
	"github.com/holdgate/holdgate/internal/target"
	"github.com/holdgate/holdgate/internal/ticket"
)

var chatOfM = target.Target{Model: "m", Kind: target.Chat}

const (
	interval = 15 * time.Second
	budget   = 5 * time.Minute
	maxBody  = 1 << 20
	maxTotal = 4 << 20
	maxHeld  = 8 << 20
	chatPath = "/v1/chat/completions"
)

// rig is a server behind a real gRPC connection, with a real hold machine, fake
// replicas and a fake engine behind the relay lane. It lives in a bubble.
type rig struct {
	*Server
	t       *testing.T // of the bubble
	machine *holdstate.Machine
	slots   *fakeSlots
	engine  *fakeEngine
	grpc    *grpc.Server
	conn    *grpc.ClientConn
	log     *bytes.Buffer
	overTCP atomic.Bool // new connections are TCP connections, not over a unix socket

	mu           sync.Mutex
	outcomes     map[holdstate.Outcome]int
	records      []*Record
	routed       int
	freed        atomic.Int32                                   // corrections
	crash        bool                                           // in Routed
	decide       func(*Request) Decision                        // nil: the usual policy
	authenticate func(Credentials) (fakeCall, *refusal.Refusal) // nil: all callers are the default tenant
	notReady     string
	revoked      *refusal.Refusal

	to             Destination // of all models
	picks          bool        // another model's destination is AsPicker
	others         string      // added to what Picked returns
	returned       []string    // the model and the replica of each request that came back
	stripReturned  bool
	ticketsRefused []string // by class
	noted          []string // by Noted

	engineKey [2]string         // header and value
	engines   map[string]Engine // by address
}

// bubble runs f with a rig in a bubble. When it ends everything must be at rest,
// and no goroutine may be left.
func bubble(t *testing.T, f func(r *rig), changes ...func(*Options)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o := Options{
			Keepalive: interval, RequestTimeout: time.Minute, AdmitPark: 250 * time.Millisecond, MaxRequestBytes: maxBody, MaxBodyBytesTotal: maxTotal,
			RelayMaxBytes: 1 << 20, LateError: LateErrorBody,
		}
		for _, change := range changes {
			change(&o)
		}
		r := newRig(t, o)
		f(r)
		synctest.Wait()
		r.requireAtRest(t)
	})
}

func newRig(t *testing.T, o Options) *rig {
	t.Helper()
	r := &rig{t: t, slots: &fakeSlots{}, engine: &fakeEngine{}, log: &bytes.Buffer{}, outcomes: map[holdstate.Outcome]int{}}
	r.machine = holdstate.New(holdstate.Options{
		Limits: holdstate.Limits{PerModel: 5000, PerKey: 5000, Total: 5000, Bytes: maxHeld, QueueDepth: 100},
		Slots:  r.slots,
		OnOutcome: func(out holdstate.Outcome, _ time.Duration) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.outcomes[out]++
		},
	})
	r.slots.machine = r.machine
	r.Server = New(o, Deps{NotReady: func() string { return r.notReady }, Decider: r, Observer: r, Wakes: r.machine, Relay: r.engine, Gateway: r.engine, Tickets: ticket.New(nil), Log: zerolog.New(r.log)})
	r.grpc = grpc.NewServer(ServerOptions()...)
	r.Register(r.grpc)
	r.conn = grpctest.Serve(t, r.grpc, func() net.Addr {
		if r.overTCP.Load() {
			return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 9), Port: 4000}
		}
		return &net.UnixAddr{Net: "unix", Name: "pid 9"}
	})
	return r
}

func (r *rig) requireAtRest(t *testing.T) {
	t.Helper()
	require.Zero(t, r.InFlight(), "in flight")
	require.Zero(t, r.holds.Load(), "holds")
	require.True(t, r.noBodies(), "body bytes are taken")
	require.Zero(t, r.slots.taken(), "slots are taken")
	require.Zero(t, r.machine.Demand(chatOfM.Model), "demand")
	require.False(t, r.machine.Waiting(chatOfM), "waiting")
	w, err := r.machine.Hold(holdstate.Request{Target: target.Target{Model: "other"}, Bytes: maxHeld})
	require.NotErrorIs(t, err, holdstate.ErrFull, "bytes are held")
	if err == nil {
		w.Report(holdstate.Leave)
	}
}

// noBodies reports whether no body takes any memory.
func (r *rig) noBodies() bool {
	const small, large = maxTotal / 4, maxTotal - maxTotal/4
	if !r.bodies.small.TryAcquire(small) {
		return false
	}
	defer r.bodies.small.Release(small)
	if !r.bodies.large.TryAcquire(large) {
		return false
	}
	r.bodies.large.Release(large)
	return true
}

func (r *rig) outcome(o holdstate.Outcome) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.outcomes[o]
}

func (r *rig) routedNow() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.routed
}

// open begins a stream; lane is empty for a gateway.
func (r *rig) open(t *testing.T, lane string) *extproctest.Exchange {
	t.Helper()
	return extproctest.Open(t, r.conn, lane, extproctest.Describe)
}

// mute is a stream of an Envoy that does not read.
func (r *rig) mute(t *testing.T) *extproctest.Exchange {
	t.Helper()
	return extproctest.Mute(t, r.conn, envoy.LaneEdge)
}

// chat is a whole chat request.
func chat(stream bool) []*extprocv3.ProcessingRequest {
	return extproctest.Request(chatPath, fmt.Sprintf(`{"model":"m","stream":%t}`, stream))
}

// ask opens a stream on the edge and sends a whole request.
func (r *rig) ask(t *testing.T, ms []*extprocv3.ProcessingRequest) *extproctest.Exchange {
	t.Helper()
	x := r.open(t, envoy.LaneEdge)
	x.Send(ms...)
	synctest.Wait()
	return x
}

// elapse lets d go by, with everything that it causes.
func elapse(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// logStream is one of Envoy's access-log streams.
func (r *rig) logStream(t *testing.T, name string) (record func(id, mode string), end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := accesslogv3.NewAccessLogServiceClient(r.conn).StreamAccessLogs(ctx)
	require.NoError(t, err)
	return logOver(t, stream, cancel, name)
}

// logOver begins a log over a stream, which cancel ends.
func logOver(t *testing.T, stream accesslogv3.AccessLogService_StreamAccessLogsClient, cancel func(), name string) (record func(id, mode string), end func()) {
	t.Helper()
	require.NoError(t, stream.Send(&accesslogv3.StreamAccessLogsMessage{Identifier: &accesslogv3.StreamAccessLogsMessage_Identifier{LogName: name}}))
	synctest.Wait()
	record = func(id, mode string) {
		require.NoError(t, stream.Send(&accesslogv3.StreamAccessLogsMessage{LogEntries: &accesslogv3.StreamAccessLogsMessage_HttpLogs{
			HttpLogs: &accesslogv3.StreamAccessLogsMessage_HTTPAccessLogEntries{LogEntry: []*dataaccesslogv3.HTTPAccessLogEntry{{
				Request:          &dataaccesslogv3.HTTPRequestProperties{RequestId: id},
				CommonProperties: &dataaccesslogv3.AccessLogCommon{Metadata: extproctest.ModeMetadata(mode)},
			}}},
		}}))
		synctest.Wait()
	}
	return record, func() {
		cancel()
		synctest.Wait()
	}
}

// leavings are the ways in which a client's leaving reaches the server.
var leavings = map[string]func(*extproctest.Exchange){
	"half-close": func(x *extproctest.Exchange) { _ = x.Stream.CloseSend() },
	"reset":      func(x *extproctest.Exchange) { x.Reset() },
}
