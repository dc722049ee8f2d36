// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/holdgate/holdgate/agentreg"
	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/internal/grpctest"
)

func TestEngineOutlivesItsAgentsRoutersRequests(t *testing.T) {
	t.Parallel()
	one, two := newRouter(t), newRouter(t)
	cfg := onDemand(t, one, "serve")
	cfg.Routers = append(cfg.Routers, two.target)
	cfg.DrainTimeout = time.Hour
	a := start(t, cfg)
	one.await("agent registered")
	two.await("agent registered")
	one.SetWanted("llama", true)
	one.await("ready")
	pid := enginePid(t, cfg)
	slot, _ := one.TakeFrom(llama, nil)
	require.NotNil(t, slot)

	a.end()
	one.await("agent is leaving")
	require.Equal(t, "sent Bye", two.await("agent left").Cause, "nothing of it is in flight")
	_, outcome := one.TakeFrom(llama, nil)
	require.Equal(t, agentreg.None, outcome)
	require.Equal(t, "leaving", one.Agents()[0].State)
	require.True(t, alive(pid))
	slot.Release()
	require.Equal(t, "sent Bye", one.await("agent left").Cause)
	a.stop(t)
	require.False(t, alive(pid))
}

func TestRequestsThatTakeTooLongDoNotKeepTheEngine(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	cfg := onDemand(t, r, "serve")
	cfg.DrainTimeout = 300 * time.Millisecond
	a := start(t, cfg)
	r.SetWanted("llama", true)
	r.await("ready")
	pid := enginePid(t, cfg)
	slot, _ := r.TakeFrom(llama, nil)
	begin := time.Now()
	a.stop(t)
	require.GreaterOrEqual(t, time.Since(begin), cfg.DrainTimeout)
	require.False(t, alive(pid))
	r.await("agent left")
	slot.Release()
}

func TestAgentThatDoesNotStopItsEngineLeavesAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		reg, _ := n.router(nil, "127.0.0.1:9002")
		n.health.Store(200)
		cfg := n.config()
		cfg.DrainTimeout = time.Hour
		end := n.run(cfg)
		after(time.Second)
		slot, _ := reg.TakeFrom(llama, nil)
		begin := time.Now()
		require.NoError(t, end())
		require.Zero(t, time.Since(begin))
		synctest.Wait()
		require.Empty(t, reg.Agents())
		slot.Release()
	})
}

// slow is a router that ends a stream some time after its Bye.
type slow struct {
	pb.UnimplementedAgentRegistryServer

	welcome time.Duration // before it answers the Hello
	linger  time.Duration
	beats   int // statuses after the Bye
}

func (s *slow) Connect(st pb.AgentRegistry_ConnectServer) error {
	if _, err := st.Recv(); err != nil {
		return err
	}
	select {
	case <-time.After(s.welcome):
	case <-st.Context().Done():
	}
	err := st.Send(&pb.RouterMessage{Message: &pb.RouterMessage_Welcome{Welcome: &pb.Welcome{Heartbeat: durationpb.New(time.Second)}}})
	if err != nil {
		return err
	}
	for {
		m, err := st.Recv()
		if err != nil {
			return err
		}
		if m.GetBye() != nil {
			break
		}
	}
	end := time.NewTimer(s.linger)
	over := make(chan struct{})
	go func() {
		defer close(over)
		for {
			m, err := st.Recv()
			if err != nil {
				return
			}
			if m.GetStatus() != nil {
				s.beats++
			}
		}
	}()
	select {
	case <-end.C:
	case <-over:
	}
	return nil
}

func TestAgentWaitsForTheEndOfItsStreamWithHeartbeats(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		router slow
		takes  time.Duration
		beats  int
	}{
		"the router ends it":      {slow{linger: 10*time.Second + time.Millisecond}, 10*time.Second + time.Millisecond, 10},
		"the drain time is over":  {slow{linger: time.Hour}, time.Minute, 59},
		"the router has not said": {slow{welcome: time.Hour}, byeTime, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t)
				srv, lis := grpc.NewServer(agentreg.New(agentreg.Options{}).ServerOptions()...), grpctest.Listen(nil)
				pb.RegisterAgentRegistryServer(srv, &c.router)
				n.at["127.0.0.1:9002"] = lis
				go func() { _ = srv.Serve(lis) }()
				t.Cleanup(srv.Stop)
				cfg := n.config()
				cfg.Exec, cfg.DrainTimeout = []string{"never started"}, time.Minute
				end := n.run(cfg)
				after(time.Millisecond)
				begin := time.Now()
				require.NoError(t, end())
				require.Equal(t, c.takes, time.Since(begin))
				synctest.Wait()
				require.InDelta(t, c.beats, c.router.beats, 1)
			})
		})
	}
}
