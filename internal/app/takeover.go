// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/holdgate/holdgate/extproc/wire"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/observe"
	"github.com/holdgate/holdgate/internal/takeover"
)

const (
	// stepTime is how long the other process may take for a step of a takeover.
	stepTime = 10 * time.Second
	// agentsTime is how long agents may take to connect to the process that takes over.
	agentsTime = 5 * time.Second
	// needsFresh is how long the needs that the process before sent last are believed.
	needsFresh = 5 * time.Second
)

// predecessor is the process that this one replaces. Its methods may be called on nil.
type predecessor struct {
	conn    *takeover.Conn
	pid     int
	sockets map[socketFor]*takeover.Listener // those that are not adopted yet
}

// meetPredecessor connects to the process that runs with the same flags, and receives its
// sockets. It returns nil if there is no such process, or without --takeover.
func (a *App) meetPredecessor(ctx context.Context) (*predecessor, error) {
	path := a.c.TakeoverPath()
	if path == "" {
		return nil, nil
	}
	conn, err := takeover.Dial(ctx, path)
	if errors.Is(err, takeover.ErrNobody) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("--takeover: %w", err)
	}
	p := &predecessor{conn: conn, sockets: map[socketFor]*takeover.Listener{}}
	if err := p.receiveSockets(); err != nil {
		return nil, errors.Join(fmt.Errorf("--takeover: %w", err), conn.Close())
	}
	a.log.Info().Int("pid", p.pid).Msg("taking over from another process")
	return p, nil
}

func (p *predecessor) receiveSockets() error {
	list, err := p.conn.ReceiveSockets(stepTime)
	if err != nil {
		return err
	}
	m, err := expect(p.conn, stepTime, "what its sockets are for", func(m *takeover.Message) bool {
		return m.Offer != nil && len(m.Offer.Sockets) == len(list)
	})
	if err != nil {
		for _, l := range list {
			_ = l.Close()
		}
		return err
	}
	p.pid = m.Offer.PID
	for i, s := range m.Offer.Sockets {
		p.sockets[socketFor{s.Flag, s.Address}] = list[i]
	}
	return nil
}

// socket returns the socket that the process has for an address, nil if it has none. The caller
// must close it.
func (p *predecessor) socket(s socketFor) *takeover.Listener {
	if p == nil {
		return nil
	}
	l := p.sockets[s]
	delete(p.sockets, s)
	return l
}

// close ends the connection, after which the other process goes on unless it has left already.
func (p *predecessor) close() error {
	if p == nil {
		return nil
	}
	p.closeRest()
	return p.conn.Close()
}

// closeRest closes the sockets that this process does not need.
func (p *predecessor) closeRest() {
	for s, l := range p.sockets {
		_ = l.Close()
		delete(p.sockets, s)
	}
}

// takeOver brings this process to where it can serve every request: its agents are connected, it
// has the map, and the other process accepts no connections any more. If it returns an error, the
// other process goes on.
func (a *App) takeOver(ctx context.Context, p *predecessor) error {
	p.closeRest()
	if err := p.conn.Send(&takeover.Message{Ready: &takeover.Ready{PID: os.Getpid()}}); err != nil {
		return err
	}
	m, err := expect(p.conn, stepTime, "which agents it has", func(m *takeover.Message) bool { return m.Agents != nil })
	if err != nil {
		return err
	}
	a.serveAgents()
	a.awaitAgents(ctx, m.Agents.IDs)
	if err := p.conn.Send(&takeover.Message{Commit: &takeover.Commit{PID: os.Getpid()}}); err != nil {
		return err
	}
	m, err = expect(p.conn, stepTime+time.Second, "that it has left", func(m *takeover.Message) bool { return m.Left != nil })
	if err != nil {
		return err
	}
	if len(m.Left.Map) > 0 {
		if _, err := a.maps.Push(m.Left.Map, true); err != nil {
			a.log.Error().Err(err).Msg("the sibling map of the other process is not in force")
		}
	}
	// If it cannot be sent, the other process accepts connections again.
	if err := p.conn.Send(&takeover.Message{Serving: &takeover.Serving{PID: os.Getpid()}}); err != nil {
		return err
	}
	for _, socket := range a.listeners.sockets {
		socket.Own()
	}
	return nil
}

// awaitAgents waits until the agents are registered here. Those that cannot connect are not
// waited for any longer.
func (a *App) awaitAgents(ctx context.Context, ids []string) {
	ctx, cancel := context.WithTimeout(ctx, agentsTime)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		missing := slices.Clone(ids)
		for _, agent := range a.registry.Agents() {
			missing = slices.DeleteFunc(missing, func(id string) bool { return id == agent.ID })
		}
		if len(missing) == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			a.log.Warn().Strs("agents", missing).Msg("these agents have not connected to this process: their models are held until they do")
			return
		}
	}
}

// others are the processes that share Envoy with this one: those before it that still have
// requests, and the one that has taken over. It implements extproc.Others.
type others struct {
	log     zerolog.Logger
	before  *outbox
	after   *outbox
	needs   atomic.Pointer[takeover.Needs] // of the process before
	ended   chan struct{}                  // closed when there is no process before, or none any more
	changed func(model string)
	routers func(sockets map[string]string) // is told the routers before this one
	logged  func(e *wire.LogEntry) (known bool)
}

func newOthers(log zerolog.Logger) *others {
	return &others{log: log, before: newOutbox(log), after: newOutbox(log), ended: make(chan struct{})}
}

// run exchanges messages with the process before until its last request has ended, or ctx ends.
func (o *others) run(ctx context.Context, p *predecessor) {
	defer close(o.ended)
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(ctx, func() { _ = p.conn.Close() })
	defer stop()
	var sending sync.WaitGroup
	defer sending.Wait()
	defer cancel()
	sending.Go(func() { o.before.send(ctx, p.conn) })
	for {
		m, err := p.conn.Receive(0)
		if err != nil {
			o.setNeeds(nil)
			o.log.Info().Int("pid", p.pid).Msg("the process before this one has ended")
			return
		}
		if m.Needs != nil {
			o.setNeeds(m.Needs)
		}
		o.receive(m, o.after)
	}
}

// receive handles the log entries of a message of another process. It passes those of requests
// that are not known here on to the process on the other side.
func (o *others) receive(m *takeover.Message, further *outbox) {
	if m.Entries == nil {
		return
	}
	for i := range m.Entries.List {
		if e := &m.Entries.List[i]; !o.logged(e) {
			further.log(e)
		}
	}
}

// Logged implements extproc.Others. While Envoy's log streams move, either process gets entries
// of the other's requests.
func (o *others) Logged(e *wire.LogEntry) {
	o.before.log(e)
	o.after.log(e)
}

// EnvoyGone implements extproc.Others.
func (o *others) EnvoyGone(envoy string, closed time.Time) {
	o.before.queue(&takeover.Message{Gone: &takeover.Gone{Envoy: envoy, At: closed}})
}

// Claimed implements extproc.Others.
func (o *others) Claimed(requestID string) {
	o.before.queue(&takeover.Message{Claim: &takeover.Claim{RequestID: requestID}})
}

// setNeeds stores the needs of the process before, and reports the models whose needs changed.
func (o *others) setNeeds(n *takeover.Needs) {
	if n == nil {
		n = &takeover.Needs{}
	}
	n.At = time.Now()
	o.routers(n.Routers)
	last := o.needs.Swap(n)
	if last == nil {
		last = &takeover.Needs{}
	}
	for model, need := range n.Models {
		if last.Models[model] != need {
			o.changed(model)
		}
	}
	for model := range last.Models {
		if _, ok := n.Models[model]; !ok {
			o.changed(model)
		}
	}
}

// ownNeeds returns the needs of this router, and of the processes that it replaces.
func (a *App) ownNeeds() observe.Needs {
	if a.others == nil {
		return a.machine
	}
	return joinedNeeds{a.machine, a.others}
}

// joinedNeeds are the needs of this process and of those before it.
type joinedNeeds struct {
	machine *holdstate.Machine
	others  *others
}

// Demand implements observe.Needs.
func (n joinedNeeds) Demand(model string) int {
	return n.machine.Demand(model) + n.others.current()[model].Demand
}

// Wanted implements observe.Needs.
func (n joinedNeeds) Wanted(model string) bool {
	return n.machine.Wanted(model) || n.others.current()[model].Wanted
}

// former returns the sockets of the routers before this one, by router id.
func (o *others) former() map[string]string {
	if n := o.needs.Load(); n != nil {
		return n.Routers
	}
	return nil
}

// current returns the needs of the process before by model.
func (o *others) current() map[string]takeover.Need {
	if o == nil {
		return nil
	}
	n := o.needs.Load()
	if n == nil || time.Since(n.At) > needsFresh {
		return nil
	}
	return n.Models
}
