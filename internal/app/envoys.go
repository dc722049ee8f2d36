// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc"
)

const (
	// compareEvery is the interval at which the Envoys' numbers are compared.
	compareEvery = 5 * time.Second
	// readTimeout limits the reading of all numbers, which must be from about the same
	// moment.
	readTimeout = 2 * time.Second
)

// envoys are the Envoys of --envoy-admin. By their numbers of active requests, log entries that
// were lost are found.
type envoys struct {
	admins []*envoy.Admin
	data   *extproc.Server
	log    zerolog.Logger
	last   extproc.Look // the last numbers; zero if there are none
	silent bool         // the last reading failed
}

func newEnvoys(addresses []string, data *extproc.Server, log zerolog.Logger) *envoys {
	e := &envoys{data: data, log: log}
	for _, address := range addresses {
		e.admins = append(e.admins, envoy.NewAdmin(address))
	}
	return e
}

// watch compares the numbers while there are requests, until ctx ends. Before, it ends what
// closeConnections of an earlier process has begun.
func (e *envoys) watch(ctx context.Context) {
	// An Envoy that does not answer has not started yet, and keeps connections.
	_ = e.each(ctx, (*envoy.Admin).KeepConnections)
	every(ctx, compareEvery, func(now time.Time) { e.compare(ctx, now) })
}

// closeConnections makes the Envoys close their clients' connections after the answers that run
// there, so that clients connect to another Envoy.
func (e *envoys) closeConnections(ctx context.Context) {
	if err := e.each(ctx, (*envoy.Admin).CloseConnections); err != nil {
		e.log.Warn().Err(err).Msg("--envoy-admin: an Envoy keeps its clients' connections")
	}
}

// each calls f for all Envoys at once, and returns the errors.
func (e *envoys) each(ctx context.Context, f func(*envoy.Admin, context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	errs := make([]error, len(e.admins))
	var all sync.WaitGroup
	for i, admin := range e.admins {
		all.Go(func() { errs[i] = f(admin, ctx) })
	}
	all.Wait()
	return errors.Join(errs...)
}

func (e *envoys) compare(ctx context.Context, now time.Time) {
	last := e.last
	e.last = extproc.Look{}
	if !e.data.Carries(now.Add(-compareEvery)) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	next := extproc.Look{At: now}
	for _, admin := range e.admins {
		if err := admin.AddTo(ctx, &next.Load); err != nil {
			e.failed(err)
			return
		}
	}
	e.silent = false
	e.last = next
	if !last.At.IsZero() {
		e.data.Correct(last, next)
	}
}

// failed logs the first of several failures in a row.
func (e *envoys) failed(err error) {
	if !e.silent {
		e.log.Warn().Err(err).Msg("--envoy-admin: lost access-log entries are not noticed until it answers")
	}
	e.silent = true
}

// engineHasFewer frees slots by the number of requests that an engine reports. With
// --envoy-admin the numbers of Envoys are used instead, since an engine does not count a
// request that it has not read yet.
func (a *App) engineHasFewer(agent *agentreg.AgentInfo, most int, first time.Time) {
	if len(a.c.EnvoyAdmin) == 0 {
		a.data.Free(agent.Address, most, first)
	}
}
