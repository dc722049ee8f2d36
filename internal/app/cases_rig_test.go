// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/extproctest"
	"github.com/holdgate/holdgate/internal/grpctest"
)

// rig is a whole app in a bubble: its two gRPC services are reached in memory, and
// nothing listens.
type rig struct {
	*App
	t              *testing.T // of the bubble
	envoys, agents *grpc.ClientConn
}

const rigMap = `{"placements": [
	{"model": "m", "kind": "chat", "site": "here", "scale_from_zero": true},
	{"model": "hour", "kind": "chat", "site": "here", "scale_from_zero": true, "hold_budget": "1h"},
	{"model": "half", "kind": "chat", "site": "here", "scale_from_zero": true, "hold_budget": "30s"}]}`

// bubble runs f with an app that has rigMap. When it ends nothing may be left.
func bubble(t *testing.T, f func(r *rig), flags ...string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{App: newApp(t, append([]string{"--agent-liveness=24h"}, flags...)...), t: t}
		_, err := r.maps.Push([]byte(rigMap), false)
		require.NoError(t, err)
		r.envoys = grpctest.Serve(t, r.App.envoy, grpctest.Unix)
		r.agents = grpctest.Serve(t, r.App.agents, grpctest.Unix)
		background, end := context.WithCancel(t.Context())
		go r.notifiers.run(background)
		go r.keeper().Run(background)
		if r.revoker != nil {
			go r.revoker.run(background)
		}
		defer func() {
			_, _ = r.envoys.Close(), r.agents.Close()
			r.App.envoy.Stop()
			r.notifiers.stop(t.Context())
			end()
			r.registry.Drain()
			r.App.agents.Stop()
			require.NoError(t, r.audit.Close())
		}()
		f(r)
		synctest.Wait()
		require.Zero(t, r.InFlight())
		for _, model := range []string{"m", "hour", "half"} {
			require.Zero(t, r.machine.Demand(model), model)
		}
	})
}

// gauge returns the present value of a series.
func (r *rig) gauge(name string, labels ...string) float64 {
	r.t.Helper()
	families, err := r.prometheus.Gather()
	require.NoError(r.t, err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
	next:
		for _, m := range f.GetMetric() {
			for i, l := range m.GetLabel() {
				if l.GetValue() != labels[i] {
					continue next
				}
			}
			return m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	require.Fail(r.t, "no series "+name, labels)
	return 0
}

// count returns the value of a gauge or counter of whole numbers.
func (r *rig) count(name string, labels ...string) int { return int(r.gauge(name, labels...)) }

func (r *rig) demand(model string) int { return int(r.gauge("hivenet_pending_demand", model)) }

func (r *rig) wanted(model string) int { return int(r.gauge("hivenet_wake_wanted", model)) }

func (r *rig) holds(outcome string) int { return int(r.gauge("hivenet_wake_holds_total", outcome)) }

// ask is one request of a client, seen from Envoy's side.
type ask struct{ *extproctest.Exchange }

// post sends a whole request; headers are pairs.
func (r *rig) post(path, body string, headers ...string) ask {
	r.t.Helper()
	return r.postIn(envoy.LaneEdge, path, body, headers...)
}

// postIn is post in a lane.
func (r *rig) postIn(lane, path, body string, headers ...string) ask {
	r.t.Helper()
	x := extproctest.Open(r.t, r.envoys, lane, told)
	x.Send(extproctest.Request(path, body, headers...)...)
	synctest.Wait()
	return ask{x}
}

// chat sends a chat request for a model.
func (r *rig) chat(model string, headers ...string) ask {
	r.t.Helper()
	return r.post("/v1/chat/completions", fmt.Sprintf(`{"model":%q}`, model), headers...)
}

// told returns what m is, in a short text.
func told(m *extprocv3.ProcessingResponse) string {
	fields := m.GetDynamicMetadata().GetFields()[envoy.Namespace].GetStructValue().GetFields()
	switch a := m.GetResponse().(type) {
	case *extprocv3.ProcessingResponse_RequestHeaders:
		return "serve on " + fields[envoy.FirstKey].GetStringValue()
	case *extprocv3.ProcessingResponse_RequestBody:
		return "body"
	case *extprocv3.ProcessingResponse_ImmediateResponse:
		return fmt.Sprintf("%d %s", a.ImmediateResponse.GetStatus().GetCode(), a.ImmediateResponse.GetBody())
	case *extprocv3.ProcessingResponse_StreamedImmediateResponse:
		if b := a.StreamedImmediateResponse.GetBodyResponse(); b != nil {
			return fmt.Sprintf("%q", b.GetBody())
		}
		return "head"
	}
	return m.String()
}

// all returns what came, with its time.
func (a ask) all() string { return strings.Join(a.Events(), "\n") }

// sent returns the value that the answer gives a header.
func (a ask) sent(name string) (value string) {
	for _, m := range a.Messages() {
		for _, o := range m.GetRequestHeaders().GetResponse().GetHeaderMutation().GetSetHeaders() {
			if o.GetHeader().GetKey() == name {
				value = string(o.GetHeader().GetRawValue())
			}
		}
	}
	return value
}

// taken returns the headers that the answer takes away.
func (a ask) taken() (names []string) {
	for _, m := range a.Messages() {
		names = append(names, m.GetRequestHeaders().GetResponse().GetHeaderMutation().GetRemoveHeaders()...)
	}
	return names
}

// gone makes the client leave.
func (a ask) gone() {
	a.Reset()
	synctest.Wait()
}

// envoyEnds ends what Envoy carries, as if Envoy had ended.
func (r *rig) envoyEnds() {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	stream, err := accesslogv3.NewAccessLogServiceClient(r.envoys).StreamAccessLogs(ctx)
	require.NoError(r.t, err)
	require.NoError(r.t, stream.Send(&accesslogv3.StreamAccessLogsMessage{
		Identifier: &accesslogv3.StreamAccessLogsMessage_Identifier{LogName: envoy.LogEdge},
	}))
	synctest.Wait()
	cancel()
	pass(time.Minute)
}

// pass waits for d, and until everything that happened then is done.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// played is an agent that a test plays.
type played struct {
	stream pb.AgentRegistry_ConnectClient
	leave  context.CancelFunc

	mu  sync.Mutex
	got []string
	seq uint64
}

// join registers an agent for the models.
func (r *rig) join(state pb.State, models ...string) *played {
	r.t.Helper()
	return r.joinAs("a", state, nil, models...)
}

// joinAs registers an agent of this name, a letter from which its port is made.
func (r *rig) joinAs(id string, state pb.State, change func(*pb.Hello), models ...string) *played {
	r.t.Helper()
	p := r.connect(id, func(h *pb.Hello) {
		h.State, h.Models = state, models
		if change != nil {
			change(h)
		}
	})
	go p.receive()
	synctest.Wait()
	return p
}

// connect opens the stream of an agent that sleeps and has a model of its name.
func (r *rig) connect(id string, change func(*pb.Hello)) *played {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	stream, err := pb.NewAgentRegistryClient(r.agents).Connect(ctx)
	require.NoError(r.t, err)
	p := &played{stream: stream, leave: cancel}
	hello := &pb.Hello{
		AgentId: id, Instance: uuid.NewString(), Address: fmt.Sprintf("127.0.0.1:%d", 8000+int(id[0]-'a')), Models: []string{id},
		Kinds: []string{"chat"}, Slots: 4, Engine: "custom", State: pb.State_STATE_ASLEEP, CanWake: true,
	}
	change(hello)
	require.NoError(r.t, stream.Send(&pb.AgentMessage{Message: &pb.AgentMessage_Hello{Hello: hello}}))
	return p
}

func (p *played) receive() {
	for {
		m, err := p.stream.Recv()
		if err != nil {
			return
		}
		p.mu.Lock()
		switch {
		case m.GetWake() != nil:
			p.got = append(p.got, "wake "+m.GetWake().GetModel())
			p.seq = max(p.seq, m.GetWake().GetSeq())
		case m.GetSleep() != nil:
			p.got = append(p.got, "sleep")
			p.seq = max(p.seq, m.GetSleep().GetSeq())
		case m.GetStatusRequest() != nil:
			p.seq = max(p.seq, m.GetStatusRequest().GetSeq())
		}
		p.mu.Unlock()
	}
}

// heard returns the orders that the agent got.
func (p *played) heard() []string {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.got...)
}

// says sends a status.
func (p *played) says(t *testing.T, state pb.State) {
	t.Helper()
	p.mu.Lock()
	seq := p.seq
	p.mu.Unlock()
	require.NoError(t, p.stream.Send(&pb.AgentMessage{Message: &pb.AgentMessage_Status{Status: &pb.Status{State: state, Healthy: true, Handled: seq}}}))
	synctest.Wait()
}
