// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/holdgate/holdgate/agentreg/agentregpb"
)

// fakeRouter stands in for Envoy and Holdgate together: it holds every request until an
// agent sends Hello.
type fakeRouter struct {
	agentregpb.UnimplementedAgentRegistryServer
	commit   bool          // sends a head and a keepalive at once
	reject   bool          // refuses the agent after the release
	released chan struct{} // closed by Hello
	held     atomic.Int64
	statuses atomic.Int64
}

func (f *fakeRouter) Connect(stream agentregpb.AgentRegistry_ConnectServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if first.GetHello().GetState() != agentregpb.State_STATE_SERVING {
		return fmt.Errorf("hello %v", first)
	}
	close(f.released)
	answer := &agentregpb.RouterMessage{Message: &agentregpb.RouterMessage_Welcome{
		Welcome: &agentregpb.Welcome{Heartbeat: durationpb.New(time.Second)},
	}}
	if f.reject {
		answer.Message = &agentregpb.RouterMessage_Reject{Reject: &agentregpb.Reject{Code: "invalid_hello"}}
	}
	if err := stream.Send(answer); err != nil {
		return err
	}
	for {
		message, err := stream.Recv()
		if err != nil {
			return nil //nolint:nilerr // the agent left
		}
		if message.GetStatus().GetHealthy() {
			f.statuses.Add(1)
		}
	}
}

func (f *fakeRouter) edge(w http.ResponseWriter, r *http.Request) {
	n, _ := io.Copy(io.Discard, r.Body)
	f.held.Add(1)
	if f.commit {
		_, _ = w.Write([]byte(" "))
		_ = http.NewResponseController(w).Flush()
	}
	<-f.released
	f.held.Add(-1)
	_, _ = w.Write(backendAnswer(n))
}

func (f *fakeRouter) admin(w http.ResponseWriter, _ *http.Request) {
	fmt.Fprintf(w, "# TYPE hivenet_pending_demand gauge\nhivenet_pending_demand{model=%q} %d\n", benchModel, f.held.Load())
}

func (f *fakeRouter) start(t *testing.T) *holdgate {
	t.Helper()
	f.released = make(chan struct{})
	edge := httptest.NewServer(http.HandlerFunc(f.edge))
	t.Cleanup(edge.Close)
	admin := httptest.NewServer(http.HandlerFunc(f.admin))
	t.Cleanup(admin.Close)
	var config net.ListenConfig
	listener, err := config.Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	agentregpb.RegisterAgentRegistryServer(server, f)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return &holdgate{
		admin: admin.Listener.Addr().String(), agents: listener.Addr().String(), client: admin.Client(),
		envoy: envoyInFront{edge: edge.Listener.Addr().String()},
	}
}

func TestWakeTimesEveryWaiterFromTheRegistration(t *testing.T) {
	t.Parallel()
	for name, commit := range map[string]bool{"not committed": false, "committed": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fakeRouter{commit: commit}
			w := wake{holdgate: f.start(t), backend: "127.0.0.1:1", waiters: 20, committed: commit}
			times, err := w.run(t.Context())
			require.NoError(t, err)
			require.Len(t, times, 20)
			for _, d := range times {
				require.Positive(t, d)
			}
			require.Zero(t, f.held.Load())
			require.Positive(t, f.statuses.Load(), "the agent says that it serves")
		})
	}
}

func TestWakeReportsAnAgentThatWasRefused(t *testing.T) {
	t.Parallel()
	f := &fakeRouter{reject: true}
	w := wake{holdgate: f.start(t), backend: "127.0.0.1:1", waiters: 1}
	_, err := w.run(t.Context())
	require.ErrorContains(t, err, "invalid_hello")
}

// A head that came before the registration was not caused by it.
func TestWakeRefusesAnAnswerFromBefore(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	early := &waiter{head: begin.Add(-time.Second), answer: begin.Add(-time.Millisecond)}
	require.Negative(t, early.sinceRegistration(begin))
	committed := &waiter{head: begin.Add(-time.Second), answer: begin.Add(time.Millisecond)}
	require.Equal(t, time.Millisecond, committed.sinceRegistration(begin))
	fresh := &waiter{head: begin.Add(time.Millisecond), answer: begin.Add(time.Second)}
	require.Equal(t, time.Millisecond, fresh.sinceRegistration(begin))
}
