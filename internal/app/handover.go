// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/internal/takeover"
)

// startTime is how long a process that takes over may take to make its parts.
const startTime = time.Minute

// offerTakeover waits for a process that takes over, until ctx ends. After a takeover it returns
// when the last request of this process has ended, and closes handedOver.
func (a *App) offerTakeover(ctx context.Context) {
	socket := a.listeners.sockets[takeoverSocket]
	for ctx.Err() == nil {
		conn, err := takeover.Accept(socket)
		if err != nil {
			return // the socket is closed
		}
		err = a.handOver(ctx, conn)
		if err == nil {
			close(a.handedOver)
			return
		}
		_ = conn.Close()
		if ctx.Err() == nil {
			a.log.Warn().Err(err).Msg("a process could not take over: this one goes on")
		}
	}
}

// handOver hands over to the process at the other end, and returns when the last request of this
// one has ended. If it returns an error, this process goes on as before.
func (a *App) handOver(ctx context.Context, conn *takeover.Conn) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if err := a.offer(conn); err != nil {
		return err
	}
	if err := a.introduceAgents(ctx, conn); err != nil {
		return err
	}
	if err := a.leave(ctx, conn); err != nil {
		a.comeBack()
		return err
	}
	a.replaced.Store(true)
	a.serveLast(ctx, conn)
	return nil
}

// offer sends the sockets, and waits until the other process is ready for agents.
func (a *App) offer(conn *takeover.Conn) error {
	var list []*takeover.Listener
	offer := &takeover.Offer{PID: os.Getpid()}
	for flag, address := range map[string]string{
		"extproc-listen": a.c.ExtProcListen, "agents-listen": a.c.AgentsListen, "admin-listen": a.c.AdminListen,
		"keda-listen": a.c.KEDAListen, takeoverSocket: "unix://" + a.c.TakeoverPath(),
	} {
		if socket := a.listeners.sockets[flag]; socket != nil {
			list = append(list, socket)
			offer.Sockets = append(offer.Sockets, takeover.Socket{Flag: flag, Address: address})
		}
	}
	if err := conn.SendSockets(list); err != nil {
		return err
	}
	if err := conn.Send(&takeover.Message{Offer: offer}); err != nil {
		return err
	}
	m, err := expect(conn, startTime, "that it is ready", func(m *takeover.Message) bool { return m.Ready != nil })
	if err != nil {
		return err
	}
	a.log.Info().Int("pid", m.Ready.PID).Msg("another process takes over")
	return nil
}

// expect receives the next message of a handover. It is an error if the message does not say what
// it should, of which has reports whether it does.
func expect(conn *takeover.Conn, within time.Duration, what string, has func(m *takeover.Message) bool) (*takeover.Message, error) {
	m, err := conn.Receive(within)
	if err == nil && !has(m) {
		err = errors.New("the other process does not say " + what)
	}
	return m, err
}

// introduceAgents has the agents connect to the other process too, and waits until it has them.
func (a *App) introduceAgents(ctx context.Context, conn *takeover.Conn) (err error) {
	agents := a.listeners.sockets["agents-listen"]
	defer func() {
		if err != nil {
			agents.Resume()
		}
	}()
	limited, cancel := context.WithTimeout(ctx, stepTime)
	defer cancel()
	// Else this process would accept the connections that are meant for the other one.
	if err := agents.Pause(limited); err != nil {
		return fmt.Errorf("--agents-listen: %w", err)
	}
	told := &takeover.Agents{PID: os.Getpid(), IDs: a.registry.Succeed()}
	if err := conn.Send(&takeover.Message{Agents: told}); err != nil {
		return err
	}
	_, err = expect(conn, agentsTime+stepTime, "that it has the agents", func(m *takeover.Message) bool { return m.Commit != nil })
	return err
}

// leave stops accepting connections, tells the other process, and waits until it serves.
func (a *App) leave(ctx context.Context, conn *takeover.Conn) error {
	limited, cancel := context.WithTimeout(ctx, stepTime)
	defer cancel()
	var all sync.WaitGroup
	for flag, socket := range a.listeners.sockets {
		socket.Leave()
		if flag != takeoverSocket { // nobody accepts there while this runs
			all.Go(func() {
				if err := socket.Pause(limited); err != nil {
					a.log.Warn().Err(err).Msg("--" + flag)
				}
			})
		}
	}
	all.Wait()
	// Both processes append to the audit file from here on.
	if err := a.audit.Reopen(); err != nil {
		a.log.Error().Err(err).Msg("--audit-file")
	}
	a.others.after.open.Store(true) // the other process may have requests from here on
	left := &takeover.Left{PID: os.Getpid()}
	if m := a.maps.Current(); m != nil {
		left.Map = m.JSON()
	}
	if err := conn.Send(&takeover.Message{Left: left}); err != nil {
		return err
	}
	_, err := expect(conn, stepTime, "that it serves", func(m *takeover.Message) bool { return m.Serving != nil })
	return err
}

// comeBack has this process accept connections again, after a process that was to take over has
// ended before it served.
func (a *App) comeBack() {
	a.others.after.open.Store(false)
	for _, socket := range a.listeners.sockets {
		socket.Own()
		socket.Resume()
	}
}

// serveLast ends what can move to the other process, and returns when the last request of this
// one has ended, and so have the processes before it. Until then it tells the other process what
// its models need, and receives the log entries of its requests.
func (a *App) serveLast(ctx context.Context, conn *takeover.Conn) {
	a.log.Info().Int("requests", a.InFlight()).Msg("handed over: this process ends with its last request")
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var receiving, sending sync.WaitGroup
	defer receiving.Wait()
	defer func() { _ = conn.Close() }()
	defer sending.Wait() // for what is queued
	defer cancel()
	// Envoy opens new connections for its next requests, and the streams of the running ones go
	// on: the server ends with the last of them.
	closed := make(chan struct{})
	a.wg.Go(func() {
		defer close(closed)
		a.envoy.GracefulStop()
	})
	a.data.MoveLogs()
	a.notifiers.keda.Stop()
	if a.keda != nil {
		a.wg.Go(a.keda.GracefulStop)
	}
	a.wg.Go(func() { _ = a.admin.Shutdown(ctx) })
	lost := make(chan struct{})
	receiving.Go(func() {
		defer close(lost)
		a.receiveEntries(conn)
	})
	agents, err := a.serveNewAgents(ctx)
	if err != nil {
		a.log.Error().Err(err).Msg("agents that connect from here on do not reach this process, so models that only they serve are not served here")
	} else {
		defer agents.Stop()
	}
	sending.Go(func() { a.tellNeeds(ctx, conn) })
	sending.Go(func() { a.others.after.send(ctx, conn) })
	ended := make(chan struct{})
	sending.Go(func() {
		defer close(ended)
		a.data.WaitForAll(ctx)
		select {
		case <-a.others.ended:
		case <-ctx.Done():
		}
	})
	select {
	case <-ended:
	case <-lost:
		// Nobody tells any more when a request that Envoy carries has ended.
		a.data.WaitForHolds(ctx)
	}
	// Envoy may still send log entries of the other process's requests over open streams.
	last := time.NewTimer(stepTime)
	defer last.Stop()
	select {
	case <-closed:
	case <-last.C:
	case <-ctx.Done():
	}
	a.log.Info().Msg("the last request has ended")
}

// serveNewAgents starts the server for agents that connect to the process that has taken over.
func (a *App) serveNewAgents(ctx context.Context) (*grpc.Server, error) {
	l, err := listen(ctx, "unix://"+a.c.FormerPath(os.Getpid()))
	if err != nil {
		return nil, err
	}
	s := grpc.NewServer(slices.Concat(grpcLimits(), a.registry.ServerOptions())...)
	agentregpb.RegisterAgentRegistryServer(s, a.registry.FormerService())
	a.wg.Go(func() { _ = s.Serve(l) })
	return s, nil
}

// receiveEntries handles the messages of the process that has taken over until it ends.
func (a *App) receiveEntries(conn *takeover.Conn) {
	for {
		m, err := conn.Receive(0)
		if err != nil {
			return
		}
		switch {
		case m.Entries != nil:
			a.others.receive(m, a.others.before)
		case m.Gone != nil:
			a.data.EnvoyGone(m.Gone.Envoy, m.Gone.At)
		case m.Claim != nil:
			a.data.Claimed(m.Claim.RequestID)
		}
	}
}

// tellNeeds sends at once, and then each second, what the models of this process need, and where
// it and those before it take agents' streams.
func (a *App) tellNeeds(ctx context.Context, conn *takeover.Conn) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		routers := map[string]string{a.registry.RouterID(): a.c.FormerPath(os.Getpid())}
		maps.Copy(routers, a.others.former())
		if conn.Send(&takeover.Message{Needs: &takeover.Needs{Models: a.needs(), Routers: routers}}) != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// needs returns what the models of this process and of those before it need.
func (a *App) needs() map[string]takeover.Need {
	all := map[string]takeover.Need{}
	maps.Copy(all, a.others.current())
	for _, model := range a.machine.Wanting() {
		all[model] = takeover.Need{Demand: all[model].Demand + a.machine.Demand(model), Wanted: true}
	}
	return all
}
