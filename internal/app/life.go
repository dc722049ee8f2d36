// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"encoding/json/v2"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"google.golang.org/grpc"

	"github.com/holdgate/holdgate/internal/backend"
	"github.com/holdgate/holdgate/internal/descriptors"
	"github.com/holdgate/holdgate/internal/regular"
	"github.com/holdgate/holdgate/internal/takeover"
)

// Start opens the listeners, starts the servers and returns. If it fails, it closes
// everything that it and New have opened, and the app cannot be started again.
func (a *App) Start(ctx context.Context) (err error) {
	var undo cleanups
	defer undo.onError(&err)
	undo.add(a.audit.Close)
	available := descriptors.Limit()
	a.warnOfDescriptors(available)
	before, err := a.meetPredecessor(ctx)
	if err != nil {
		return err
	}
	undo.add(before.close)
	limits := limitsFor(available)
	a.events.Allow(limits.admin / 4)
	if err := a.listeners.open(ctx, a.c, limits, before); err != nil {
		return err
	}
	undo.add(a.listeners.close)
	// With TLS the connection below gRPC cannot be read.
	if socket := a.listeners.sockets["extproc-listen"]; socket != nil && a.c.ExtProcTLSCertFile == "" {
		socket.ReadAlong(func() takeover.Tap { return a.data.NewTap() })
	}
	if err := a.writePorts(); err != nil {
		return err
	}
	background, end := context.WithCancel(context.WithoutCancel(ctx))
	a.endBackground = end
	undo.add(a.undoStart)
	a.runShared(background)
	if before == nil {
		a.serveAgents()
	} else if err := a.takeOver(ctx, before); err != nil {
		return fmt.Errorf("--takeover: %w", err)
	}
	// Nothing can fail from here on.
	a.runTakeovers(background, before)
	a.serve()
	a.runBackground(background)
	a.log.Info().Str("extproc", a.c.ExtProcListen).Str("agents", a.AgentsAddr()).Str("admin", a.AdminAddr()).Msg("holdgate is ready")
	return nil
}

// undoStart ends what a start that fails has begun.
func (a *App) undoStart() error {
	a.endBackground()
	a.registry.Drain()
	a.agents.Stop()
	a.wg.Wait()
	return nil
}

// serveAgents starts the server for agents.
func (a *App) serveAgents() { a.startServer("agents", a.agents.Serve, a.listeners.agents) }

// serve starts the other servers.
func (a *App) serve() {
	a.startServer("Envoy", a.envoy.Serve, a.listeners.envoy)
	if a.keda != nil {
		a.startServer("KEDA", a.keda.Serve, a.listeners.keda)
	}
	a.startServer("the admin API", a.admin.Serve, a.listeners.admin)
}

func (a *App) startServer(name string, serve func(net.Listener) error, l net.Listener) {
	a.wg.Go(func() {
		if err := serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, grpc.ErrServerStopped) {
			a.failed <- fmt.Errorf("serving %s: %w", name, err)
		}
	})
}

// runTakeovers starts the exchange with the process before this one, nil if there is none, and
// waits for one that takes over from this one, until ctx ends.
func (a *App) runTakeovers(ctx context.Context, before *predecessor) {
	if a.others == nil {
		return
	}
	if before == nil {
		close(a.others.ended)
	} else {
		a.others.before.open.Store(true)
		a.wg.Go(func() { a.others.run(ctx, before) })
	}
	a.wg.Go(func() { a.offerTakeover(ctx) })
}

// runBackground starts the goroutines that run until ctx ends.
func (a *App) runBackground(ctx context.Context) {
	start := func(run func(ctx context.Context)) { a.wg.Go(func() { run(ctx) }) }
	start(a.notifiers.run)
	start(a.recheckWaiters)
	start(a.keeper().Run)
	start(a.awaitMap)
	if len(a.c.EnvoyAdmin) > 0 {
		start(a.envoys.watch)
	}
	start(func(ctx context.Context) { a.runBackends(ctx, nil) })
	for _, file := range a.watched {
		start(file.Watch)
	}
	if a.revoker != nil {
		start(a.revoker.run)
	}
}

// runBackends runs the backends until ctx ends. client is nil except in tests.
func (a *App) runBackends(ctx context.Context, client *http.Client) {
	a.backends.Run(ctx, backend.Options{
		Registry: a.registry, Wanted: a.machine.Wanted, Used: a.notifiers.used, Client: client, Log: a.log,
		OnModels: a.notifiers.placementsChanged, OnHealth: a.notifiers.changed,
	})
}

// recheckWaiters checks each second whether waiters can go on, since a reloaded policy may
// have raised their limits.
func (a *App) recheckWaiters(ctx context.Context) {
	every(ctx, time.Second, func(time.Time) { a.machine.UpdateAll() })
}

// every calls f at each interval until ctx ends.
func every(ctx context.Context, interval time.Duration, f func(now time.Time)) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			f(now)
		}
	}
}

// Replaced reports whether another process has taken over from this one.
func (a *App) Replaced() bool { return a.replaced.Load() }

// HandedOver returns a channel that is closed when another process has taken over and the last
// request of this one has ended. Then Stop has nothing to wait for.
func (a *App) HandedOver() <-chan struct{} { return a.handedOver }

// Failed returns the channel of errors of servers that ended by themselves.
func (a *App) Failed() <-chan error { return a.failed }

// AgentsAddr returns the address where agents register.
func (a *App) AgentsAddr() string { return a.listeners.agents.Addr().String() }

// AdminAddr returns the address of the admin API.
func (a *App) AdminAddr() string { return a.listeners.admin.Addr().String() }

// InFlight returns the number of requests between their headers and their end.
func (a *App) InFlight() int { return a.data.InFlight() }

// Addresses returns the addresses in use, by purpose: admin, agents, keda.
func (a *App) Addresses() map[string]string {
	all := map[string]string{"admin": a.AdminAddr(), "agents": a.AgentsAddr()}
	if a.listeners.keda != nil {
		all["keda"] = a.listeners.keda.Addr().String()
	}
	return all
}

func (a *App) writePorts() error {
	if a.c.PortsFile == "" {
		return nil
	}
	text, err := json.Marshal(a.Addresses(), json.Deterministic(true))
	if err != nil {
		return fmt.Errorf("writing --ports-file: %w", err)
	}
	if err := regular.Write(a.c.PortsFile, text, 0o600); err != nil {
		return fmt.Errorf("writing --ports-file: %w", err)
	}
	return nil
}

// Stop ends the app in the numbered steps, which docs/architecture.md lists too. They stop
// waiting when ctx ends or the drain timeout has passed; those after the drain have at least
// endTime. Until the last request that waits has ended, agents, webhooks and KEDA are told of
// the demand. Responses that Envoy is sending continue without this process.
func (a *App) Stop(ctx context.Context) error {
	if a.draining.Swap(true) {
		return nil
	}
	a.log.Info().Int("requests", a.InFlight()).Msg("draining")
	if socket := a.listeners.sockets[takeoverSocket]; socket != nil {
		_ = socket.Close() // no process takes over any more
	}
	drain, cancel := context.WithTimeout(ctx, a.c.DrainTime())
	defer cancel()
	// 1. `/readyz` and the gRPC health services report the shutdown.
	a.health.Shutdown()
	// 2. The Envoys of `--envoy-admin` begin to close their clients' connections.
	if !a.replaced.Load() {
		a.wg.Go(func() { a.envoys.closeConnections(drain) })
	}
	// 3. New holds are refused; waiters whose answer has not begun end with `draining`.
	a.machine.Drain()
	// 4. The other waiters are served, and relayed answers finish.
	a.data.WaitForHolds(drain)
	ctx, end := extend(ctx, drain)
	defer end()
	// 5. The waiters that are left end with a late error `draining`.
	a.machine.EndAll()
	a.data.WaitForHolds(ctx)
	// 6. The log entries of requests that have ended arrive.
	a.data.WaitForLogEntries(ctx)
	// 7. Envoy's log streams end.
	a.data.EndLogs()
	// 8. The ext_proc service ends.
	stopGracefully(ctx, a.envoy)
	// 9. Calls of webhooks and KEDA's streams end.
	a.notifiers.stop(ctx)
	if a.keda != nil {
		a.keda.Stop()
	}
	// 10. Background work ends, and with it the backends' agents.
	a.endBackground()
	// 11. The agents are told which slots Envoy still uses; their streams and their service end.
	a.registry.Drain()
	a.stopAgents(ctx)
	// 12. The requests that Envoy still carries end as `record_lost`.
	a.data.EndAll()
	// 13. The admin API ends.
	err := a.admin.Shutdown(ctx)
	if err != nil {
		err = errors.Join(fmt.Errorf("stopping the admin API: %w", err), a.admin.Close())
	}
	// 14. The audit log is written and closed.
	a.wg.Wait()
	return errors.Join(err, a.audit.Close())
}

// endTime is the least time for what Stop does after the drain.
const endTime = 2 * time.Second

// extend returns a context below ctx with the deadline of drain, but at least endTime.
func extend(ctx, drain context.Context) (context.Context, context.CancelFunc) {
	deadline, _ := drain.Deadline()
	if least := time.Now().Add(endTime); deadline.Before(least) {
		deadline = least
	}
	return context.WithDeadline(ctx, deadline)
}

// stopAgents stops the agents' service when it has sent its last messages. It does not wait for
// calls of the health service, which do not end by themselves.
func (a *App) stopAgents(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	stopGracefully(ctx, a.agents)
}

// stopGracefully stops a server when its calls have ended or ctx ends.
func stopGracefully(ctx context.Context, s *grpc.Server) {
	stop := context.AfterFunc(ctx, s.Stop)
	defer stop()
	s.GracefulStop()
}

// Reload reads all files again, even if one of them is invalid, and reopens the audit file,
// in case another program has moved it.
func (a *App) Reload() error {
	var errs []error
	for _, file := range a.watched {
		errs = append(errs, file.Reload())
	}
	if err := a.audit.Reopen(); err != nil {
		errs = append(errs, fmt.Errorf("--audit-file: %w", err))
	}
	return errors.Join(errs...)
}
