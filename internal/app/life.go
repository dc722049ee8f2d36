// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"encoding/json/v2"
	"errors"
	"fmt"
	"net/http"
	"time"

	"google.golang.org/grpc"

	"github.com/holdgate/holdgate/internal/backend"
	"github.com/holdgate/holdgate/internal/descriptors"
	"github.com/holdgate/holdgate/internal/regular"
)

// Start opens the listeners and serves. It returns when all of them are open.
func (a *App) Start(ctx context.Context) error {
	available := descriptors.Limit()
	a.warnOfDescriptors(available)
	if err := a.listeners.open(ctx, a.c, limitsFor(available)); err != nil {
		return err
	}
	serve := func(name string, f func() error) {
		a.wg.Go(func() {
			if err := f(); err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, grpc.ErrServerStopped) {
				a.failed <- fmt.Errorf("serving %s: %w", name, err)
			}
		})
	}
	serve("Envoy", func() error { return a.envoy.Serve(a.listeners.envoy) })
	serve("agents", func() error { return a.agents.Serve(a.listeners.agents) })
	if a.notifiers.server != nil {
		serve("KEDA", func() error { return a.notifiers.server.Serve(a.listeners.keda) })
	}
	serve("the admin API", func() error { return a.admin.Serve(a.listeners.admin) })
	background, end := context.WithCancel(context.WithoutCancel(ctx))
	a.endBackground = end
	a.wg.Go(func() { a.wakeSignal.run(background, a.look) })
	a.wg.Go(func() { a.lookAgain(background) })
	a.wg.Go(func() { a.keeper().Run(background) })
	a.wg.Go(func() { a.awaitMap(background) })
	if len(a.c.EnvoyAdmin) > 0 {
		a.wg.Go(func() { newEnvoys(a.c.EnvoyAdmin, a.data, a.log).watch(background) })
	}
	a.wg.Go(func() { a.visitBackends(background, nil) })
	for _, file := range a.watched {
		a.wg.Go(func() { file.Watch(background) })
	}
	if a.revoker != nil {
		a.wg.Go(func() { a.revoker.run(background) })
	}
	if err := a.writePorts(); err != nil {
		return errors.Join(err, a.Stop(ctx))
	}
	a.log.Info().Str("extproc", a.c.ExtProcListen).Str("agents", a.AgentsAddr()).Str("admin", a.AdminAddr()).Msg("holdgate is ready")
	return nil
}

// visitBackends looks at the backends until ctx ends. client is nil but in tests.
func (a *App) visitBackends(ctx context.Context, client *http.Client) {
	a.backends.Run(ctx, backend.Options{
		Registry: a.registry, Wanted: a.machine.Wanted, Used: a.used, Client: client, Log: a.log,
		OnModels: a.placed, OnHealth: a.wakeSignal.changed,
	})
}

// lookAgain looks each second whether those who wait have room: a reloaded policy
// may have given them some.
func (a *App) lookAgain(ctx context.Context) {
	every(ctx, time.Second, func(time.Time) { a.machine.UpdateAll() })
}

// awaitMap warns when no map has come in time.
func (a *App) awaitMap(ctx context.Context) {
	timer := time.NewTimer(time.Until(a.mapWait))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
		if a.lacksMap() {
			a.log.Warn().Msg("no sibling map came within --map-wait: the router is ready without one and serves only models that are up or of backends; push one with holdgate map push -f FILE")
		}
	}
}

// every calls f again and again until ctx ends.
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

// Failed delivers the error of a server that ended by itself.
func (a *App) Failed() <-chan error { return a.failed }

// AgentsAddr is where agents register.
func (a *App) AgentsAddr() string { return a.listeners.agents.Addr().String() }

// AdminAddr is where the admin API listens.
func (a *App) AdminAddr() string { return a.listeners.admin.Addr().String() }

// InFlight is the number of requests between their headers and their end.
func (a *App) InFlight() int { return a.data.InFlight() }

// addresses are those in use, by what they are for.
func (a *App) addresses() map[string]string {
	all := map[string]string{"admin": a.AdminAddr(), "agents": a.AgentsAddr()}
	if a.listeners.keda != nil {
		all["keda"] = a.listeners.keda.Addr().String()
	}
	return all
}

// KEDAAddr is where KEDA connects.
func (a *App) KEDAAddr() string { return a.addresses()["keda"] }

func (a *App) writePorts() error {
	if a.c.PortsFile == "" {
		return nil
	}
	text, err := json.Marshal(a.addresses(), json.Deterministic(true))
	if err != nil {
		return fmt.Errorf("writing --ports-file: %w", err)
	}
	if err := regular.Write(a.c.PortsFile, text, 0o600); err != nil {
		return fmt.Errorf("writing --ports-file: %w", err)
	}
	return nil
}

// Stop drains: no new holds, waiters end with draining, relayed answers may finish
// until ctx or the drain timeout ends, and the admin port goes last. Answers that
// Envoy carries need nothing of this process, but are on record without their end. The
// audit log closes when every request has its line.
func (a *App) Stop(ctx context.Context) error {
	if a.draining.Swap(true) {
		return nil
	}
	a.log.Info().Msg("draining")
	a.health.Shutdown()
	ctx, cancel := context.WithTimeout(ctx, a.c.DrainTimeout)
	defer cancel()
	a.machine.Drain()
	a.data.WaitForHolds(ctx)
	a.data.WaitForRecords(ctx)
	a.data.EndLogs()
	stopGracefully(ctx, a.envoy)
	a.data.EndAll()
	a.notifiers.stop(ctx)
	a.endBackground()
	a.registry.Drain()
	a.agents.Stop()
	err := a.admin.Shutdown(ctx)
	if err != nil {
		err = errors.Join(fmt.Errorf("stopping the admin API: %w", err), a.admin.Close())
	}
	a.wg.Wait()
	return errors.Join(err, a.audit.Close())
}

// stopGracefully stops a server when what it has sent was taken, or ctx ends.
func stopGracefully(ctx context.Context, s *grpc.Server) {
	stop := context.AfterFunc(ctx, s.Stop)
	defer stop()
	s.GracefulStop()
}

// Reload is what SIGHUP asks for: each file is read again, whatever is wrong with
// another, and the audit file is opened again, so that another program may have
// moved it.
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
