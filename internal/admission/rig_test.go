// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/holdgate/holdgate/agentreg"
	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/access"
	"github.com/holdgate/holdgate/internal/policy"
	"github.com/holdgate/holdgate/internal/target"
)

var chatOfM = target.Target{Model: "m", Kind: target.Chat}

// rig is a capacity under a policy, with the registry that it looks at.
type rig struct {
	*Capacity
	t        require.TestingT
	ctx      context.Context
	registry *agentreg.Registry
	policy   *policy.Policy
	changes  atomic.Int32 // how often the registry said that chatOfM changed
}

// newRig needs a bubble. Its agents leave when ctx ends.
func newRig(ctx context.Context, t require.TestingT, text string) *rig {
	r := &rig{t: t, ctx: ctx}
	r.setPolicy(text)
	r.registry = agentreg.New(agentreg.Options{
		Liveness: 24 * time.Hour,
		OnChange: func(target target.Target) {
			if target == chatOfM {
				r.changes.Add(1)
			}
		},
	})
	r.Capacity = NewCapacity(r.registry, func() *policy.Policy { return r.policy })
	return r
}

// bubble runs f with a rig under a policy for the model m.
func bubble(t *testing.T, text string, f func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f(newRig(t.Context(), t, text))
	})
}

// setPolicy gives m this policy; empty: the file does not name it.
func (r *rig) setPolicy(text string) {
	if text != "" {
		text = "m: " + text
	}
	p, err := policy.Parse([]byte("models: {" + text + "}"))
	require.NoError(r.t, err)
	r.policy = p
}

// agent is the stream of an agent to the registry. It does what a test says.
type agent struct {
	grpc.ServerStream

	ctx  context.Context
	sent chan *pb.AgentMessage
	seq  atomic.Uint64 // of the last message of the registry that has one
}

func (a *agent) Context() context.Context { return a.ctx }

func (a *agent) Recv() (*pb.AgentMessage, error) {
	select {
	case m := <-a.sent:
		return m, nil
	case <-a.ctx.Done():
		return nil, io.EOF
	}
}

func (a *agent) Send(m *pb.RouterMessage) error {
	if s := m.GetStatusRequest(); s != nil {
		a.seq.Store(s.GetSeq())
	}
	return nil
}

// healthy says that the agent's engine serves.
func (a *agent) healthy() {
	synctest.Wait()
	a.sent <- &pb.AgentMessage{Message: &pb.AgentMessage_Status{Status: &pb.Status{
		State: pb.State_STATE_SERVING, Healthy: true, Handled: a.seq.Load(),
	}}}
	synctest.Wait()
}

// pass lets d go by, with everything that it causes.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// addressOf is the address of the engine of an agent, whose id is one letter.
func addressOf(id string) string { return fmt.Sprintf("127.0.0.1:%d", 8000+int(id[0]-'a')) }

// join registers an agent that serves m.
func (r *rig) join(id, region string, slots uint32, kinds ...string) *agent {
	if len(kinds) == 0 {
		kinds = []string{"chat"}
	}
	a := &agent{ctx: r.ctx, sent: make(chan *pb.AgentMessage, 1)}
	a.sent <- &pb.AgentMessage{Message: &pb.AgentMessage_Hello{Hello: &pb.Hello{
		AgentId: id, Instance: uuid.NewString(), Address: addressOf(id), Models: []string{"m"}, Kinds: kinds,
		Slots: slots, Engine: "custom", Region: region, State: pb.State_STATE_SERVING,
	}}}
	go func() { _ = r.registry.OwnService().Connect(a) }()
	synctest.Wait()
	return a
}

// request is one for chatOfM with this footprint and without a key.
func (r *rig) request(tokens int64) *Attempts { return r.of(access.Anonymous(), tokens) }

// of is a request of a key.
func (r *rig) of(key *access.Key, tokens int64) *Attempts {
	a := r.Attempts(chatOfM, key, tokens)
	return &a
}

// take gives a request room and a slot, and says on which agent.
func (r *rig) take(q *Attempts) (*Grant, string) {
	room, err := q.Admit(false)
	require.NoError(r.t, err)
	require.NotNil(r.t, room)
	g, took := q.Take(room)
	require.Equal(r.t, holdstate.Taken, took)
	return g.(*Grant), g.(*Grant).Agent().ID
}

// took is what Take gives a request that has room, and gives it back.
func (r *rig) took(q *Attempts) holdstate.TakeResult {
	g, took := q.Take(unlimited{})
	if g != nil {
		g.Release()
	}
	return took
}

// look returns what Admit and Take would give at this moment: whether the gate has room,
// whether a slot is free, and the error of Admit.
func look(a *Attempts) (room, slot bool, err error) {
	claim := a.DryRun()
	r, err := claim.Admit(false)
	if err != nil {
		return false, false, err
	}
	_, took := claim.Take(r)
	return r != nil, took == holdstate.Taken, nil
}
