// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/internal/grpctest"
	"github.com/holdgate/holdgate/internal/target"
)

var llama = target.Target{Model: "llama", Kind: target.Chat}

// router is a registry behind a real gRPC server, with what it called back.
type router struct {
	*Registry
	t      *testing.T
	client pb.AgentRegistryClient

	mu      sync.Mutex
	changes map[target.Target]int
	failed  []string
	serving []string
	lost    []string
	onFail  func(model string)
}

func newRouter(t *testing.T, options ...grpc.ServerOption) *router {
	t.Helper()
	rt := &router{t: t, changes: map[target.Target]int{}}
	rt.Registry = New(Options{
		Log: zerolog.New(zerolog.NewTestWriter(t)), GroupGrace: DefaultGroupGrace,
		OnChange: func(tg target.Target) { rt.mu.Lock(); rt.changes[tg]++; rt.mu.Unlock() },
		OnWakeFailed: func(model, reason string) {
			rt.mu.Lock()
			rt.failed = append(rt.failed, model+": "+reason)
			rt.mu.Unlock()
			if rt.onFail != nil {
				rt.onFail(model)
			}
		},
		OnLost:    func(a *AgentInfo) { rt.mu.Lock(); rt.lost = append(rt.lost, a.ID); rt.mu.Unlock() },
		OnServing: func(a *AgentInfo) { rt.mu.Lock(); rt.serving = append(rt.serving, a.ID); rt.mu.Unlock() },
	})
	srv := grpc.NewServer(append(rt.ServerOptions(), options...)...)
	pb.RegisterAgentRegistryServer(srv, rt.Service())
	rt.client = pb.NewAgentRegistryClient(grpctest.Serve(t, srv, grpctest.Unix))
	return rt
}

func (rt *router) changesOf(tg target.Target) int {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	return rt.changes[tg]
}

func (rt *router) failures() []string {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	return append([]string(nil), rt.failed...)
}

// losses returns how many agents have left routing although nobody asked for it.
func (rt *router) losses() int {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	return len(rt.lost)
}

// instance makes a UUID of a number.
func instance(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

// Take takes a slot of any replica of t.
func (r *Registry) Take(t target.Target) (*Slot, Outcome) { return r.TakeFrom(t, nil) }

// aHello is a valid Hello, changed by each edit.
func aHello(edits ...func(*pb.Hello)) *pb.Hello {
	h := &pb.Hello{
		AgentId: "a", Instance: instance(1), Address: "127.0.0.1:8000",
		Models: []string{"llama"}, Kinds: []string{"chat"}, Slots: 2,
		Engine: "llamacpp", State: pb.State_STATE_SERVING,
	}
	for _, e := range edits {
		e(h)
	}
	return h
}

func asleep(h *pb.Hello)    { h.State, h.CanWake = pb.State_STATE_ASLEEP, true }
func canWake(h *pb.Hello)   { h.CanWake = true }
func restarted(h *pb.Hello) { h.Instance = instance(2) }
func named(id string) func(*pb.Hello) {
	return func(h *pb.Hello) { h.AgentId = id }
}

func idle(d time.Duration) func(*pb.Hello) {
	return func(h *pb.Hello) { h.CanWake, h.IdleTimeout = true, durationpb.New(d) }
}

// scripted is an agent that a test plays.
type scripted struct {
	t      *testing.T
	stream pb.AgentRegistry_ConnectClient
	end    context.CancelFunc

	mu   sync.Mutex
	got  []*pb.RouterMessage
	err  error
	over bool
	seq  uint64

	lastState pb.State // of its last Status
}

// connect opens a stream and sends a Hello.
func (rt *router) connect(h *pb.Hello) *scripted {
	rt.t.Helper()
	ctx, end := context.WithCancel(rt.t.Context())
	st, err := rt.client.Connect(ctx)
	require.NoError(rt.t, err)
	a := &scripted{t: rt.t, stream: st, end: end}
	go a.receive()
	rt.t.Cleanup(end)
	if h != nil {
		// A router that drains may end the stream before this; receive sees why.
		_ = st.Send(&pb.AgentMessage{Message: &pb.AgentMessage_Hello{Hello: h}})
	}
	synctest.Wait()
	return a
}

func (a *scripted) receive() {
	for {
		m, err := a.stream.Recv()
		a.mu.Lock()
		if err != nil {
			a.err, a.over = err, true
			a.mu.Unlock()
			return
		}
		a.got = append(a.got, m)
		a.seq = max(a.seq, m.GetWake().GetSeq(), m.GetSleep().GetSeq(), m.GetStatusRequest().GetSeq())
		a.mu.Unlock()
	}
}

func (a *scripted) send(m *pb.AgentMessage) {
	a.t.Helper()
	require.NoError(a.t, a.stream.Send(m))
	synctest.Wait()
}

// status sends a Status that takes all received messages into account.
func (a *scripted) status(state pb.State, edits ...func(*pb.Status)) {
	a.t.Helper()
	a.mu.Lock()
	s := &pb.Status{State: state, Healthy: state == pb.State_STATE_SERVING, Handled: a.seq, Routers: 1}
	a.mu.Unlock()
	for _, e := range edits {
		e(s)
	}
	a.lastState = state
	a.send(&pb.AgentMessage{Message: &pb.AgentMessage_Status{Status: s}})
}

func unhealthy(s *pb.Status) { s.Healthy = false }

// stale makes a Status that was sent before the last message arrived.
func stale(s *pb.Status) { s.Handled-- }

func (a *scripted) wakeFailed(reason string) {
	a.t.Helper()
	a.send(&pb.AgentMessage{Message: &pb.AgentMessage_WakeResult{WakeResult: &pb.WakeResult{Model: "llama", Reason: reason}}})
}

// took returns the names of the messages received since the last call.
func (a *scripted) took() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var names []string
	for _, m := range a.got {
		switch m := m.GetMessage().(type) {
		case *pb.RouterMessage_Welcome:
			names = append(names, "welcome")
		case *pb.RouterMessage_Reject:
			names = append(names, "reject "+m.Reject.GetCode())
		case *pb.RouterMessage_Wake:
			names = append(names, "wake "+m.Wake.GetModel())
		case *pb.RouterMessage_Sleep:
			names = append(names, "sleep")
		case *pb.RouterMessage_StatusRequest:
			names = append(names, "status?")
		case *pb.RouterMessage_Successor:
			names = append(names, "successor")
		case *pb.RouterMessage_Former:
			names = append(names, "former "+m.Former.GetRouterId())
		}
	}
	a.got = nil
	return names
}

func (a *scripted) ended() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.over
}

// SetWanted is SetNeed for requests that wait.
func (r *Registry) SetWanted(model string, wanted bool) {
	r.SetNeed(model, target.Need{Demand: wanted})
}
