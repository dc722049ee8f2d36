// SPDX-License-Identifier: Apache-2.0

package herd

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/holdgate/holdgate/agentreg"
	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/access"
	"github.com/holdgate/holdgate/internal/admission"
	"github.com/holdgate/holdgate/internal/grpctest"
	"github.com/holdgate/holdgate/internal/policy"
	"github.com/holdgate/holdgate/internal/target"
)

// slots is the number of slots of each engine.
const slots = 4

var chatOfM = target.Target{Model: "m", Kind: target.Chat}

// site is everything that gives out slots, put together as in holdgate serve.
type site struct {
	t        *testing.T // that of the bubble
	registry *agentreg.Registry
	machine  *holdstate.Machine
	ledger   *ledger
	conn     *grpc.ClientConn
	joined   int

	mu       sync.Mutex
	outcomes map[holdstate.Outcome]int
	running  map[string]int // by engine
	most     map[string]int // that ran at once, by engine
}

// newSite returns a site in a bubble. It is closed at the end of the test.
func newSite(t *testing.T, policyText string, inOrder bool) *site {
	t.Helper()
	p, err := policy.Parse([]byte(policyText))
	require.NoError(t, err)
	s := &site{t: t, outcomes: map[holdstate.Outcome]int{}, running: map[string]int{}, most: map[string]int{}}
	s.registry = agentreg.New(agentreg.Options{
		Log: zerolog.Nop(), Liveness: 24 * time.Hour,
		OnChange: func(t target.Target) { s.machine.Update(t) },
	})
	s.ledger = &ledger{t: t, Capacity: admission.NewCapacity(s.registry, func() *policy.Policy { return p })}
	s.machine = holdstate.New(holdstate.Options{
		Limits: holdstate.Limits{PerModel: 1 << 20, PerKey: 1 << 20, Total: 1 << 20, Bytes: 1 << 30, QueueDepth: 30},
		Slots:  s.ledger, InOrder: inOrder,
		OnOutcome: func(o holdstate.Outcome, _ time.Duration) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.outcomes[o]++
		},
	})
	agents := grpc.NewServer()
	pb.RegisterAgentRegistryServer(agents, s.registry.Service())
	s.conn = grpctest.Serve(t, agents, grpctest.Unix)
	background, end := context.WithCancel(t.Context())
	go s.updateOften(background)
	t.Cleanup(func() {
		end()
		s.registry.Drain()
	})
	return s
}

// updateOften updates the machine as the app does, which does so each second. No result
// here depends on it: less often costs less.
func (s *site) updateOften(ctx context.Context) {
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.machine.UpdateAll()
		}
	}
}

// join registers one more agent.
func (s *site) join() {
	s.t.Helper()
	stream, err := pb.NewAgentRegistryClient(s.conn).Connect(s.t.Context())
	require.NoError(s.t, err)
	s.joined++
	require.NoError(s.t, stream.Send(&pb.AgentMessage{Message: &pb.AgentMessage_Hello{Hello: &pb.Hello{
		AgentId: fmt.Sprint("agent-", s.joined), Instance: uuid.NewString(), Address: fmt.Sprint("127.0.0.1:", 8000+s.joined),
		Models: []string{chatOfM.Model}, Kinds: []string{"chat"}, Slots: slots, Engine: "custom", State: pb.State_STATE_SERVING,
	}}}))
	m, err := stream.Recv()
	require.NoError(s.t, err)
	require.NotNil(s.t, m.GetWelcome(), "%v", m)
	synctest.Wait()
}

// begins records that an engine starts to work on a request; ends records the end.
func (s *site) begins(engine string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running[engine]++
	s.most[engine] = max(s.most[engine], s.running[engine])
}

func (s *site) ends(engine string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running[engine]--
}

// requireAtRest requires that every count is 0, that no engine ever exceeded its slots,
// and that this many requests ended, each once.
func (s *site) requireAtRest(ended int) {
	s.t.Helper()
	synctest.Wait()
	require.Zero(s.t, s.machine.Demand(chatOfM.Model))
	require.False(s.t, s.machine.Waiting(chatOfM))
	gate, queue := s.machine.Depths(chatOfM.Model)
	require.Zero(s.t, gate+queue)
	require.Equal(s.t, s.registry.Capacity(chatOfM).Slots, s.registry.Capacity(chatOfM).Free)
	for _, l := range s.ledger.Loads() {
		require.Zero(s.t, l.Requests+l.Tokens)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := 0
	for _, n := range s.outcomes {
		all += n
	}
	require.Equal(s.t, ended, all)
	require.Len(s.t, s.most, s.joined, "engines that worked")
	for engine := range s.most {
		require.Zero(s.t, s.running[engine])
		require.Equal(s.t, slots, s.most[engine], engine)
	}
}

// ledger is the capacity, which also records every slot that it grants.
type ledger struct {
	*admission.Capacity
	t *testing.T

	mu    sync.Mutex
	given []slot
}

// slot is a slot that was granted to a request.
type slot struct {
	claim *claim
	at    time.Time
}

// claim is the claim of a request. The ledger notes the slots that it takes.
type claim struct {
	admission.Attempts
	ledger *ledger
}

// claim returns the claim of a request for chatOfM.
func (l *ledger) claim(key string, tokens int64) *claim {
	return &claim{l.Attempts(chatOfM, &access.Key{ID: key, Share: 1}, tokens), l}
}

// Admit implements holdstate.Claim.
func (c *claim) Admit(behind bool) (holdstate.Reservation, error) {
	r, err := c.Attempts.Admit(behind)
	if r != nil {
		c.ledger.requireWithinLimits()
	}
	return r, err
}

// Take implements holdstate.Claim.
func (c *claim) Take(r holdstate.Reservation) (holdstate.Grant, holdstate.TakeResult) {
	g, result := c.Attempts.Take(r)
	if result == holdstate.Taken {
		c.ledger.mu.Lock()
		c.ledger.given = append(c.ledger.given, slot{c, time.Now()})
		c.ledger.mu.Unlock()
	}
	return g, result
}

// requireWithinLimits requires that the reservations do not exceed the policy.
func (l *ledger) requireWithinLimits() {
	for _, load := range l.Loads() {
		if load.RequestLimit > 0 && load.Requests > load.RequestLimit || load.TokenLimit > 0 && load.Tokens > load.TokenLimit {
			l.t.Errorf("%+v is over its limit", load)
		}
	}
}

// slots returns the granted slots in order.
func (l *ledger) slots() []slot {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.given
}
