// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
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
// were lost are found. The gauge up says which of them answer.
type envoys struct {
	up     *prometheus.GaugeVec // by address; nil: there are no Envoys
	names  []string             // their addresses
	admins []*envoy.Admin
	data   *extproc.Server
	log    zerolog.Logger
	last   extproc.Look // the last numbers; zero if there are none
	silent bool         // the last reading failed
}

func (a *App) newEnvoys() *envoys {
	addresses := a.c.EnvoyAdmin
	e := &envoys{data: a.data, log: a.log, names: addresses}
	if len(addresses) > 0 {
		e.up = promauto.With(a.prometheus).NewGaugeVec(prometheus.GaugeOpts{
			Name: a.c.MetricsPrefix + "envoy_up",
			Help: "1 while the Envoy of --envoy-admin answers that it is ready.",
		}, []string{"envoy"})
	}
	for _, address := range addresses {
		e.admins = append(e.admins, envoy.NewAdmin(address))
	}
	return e
}

// watch looks which Envoys are up, and compares the numbers while there are requests, until ctx
// ends. Before, it ends what closeConnections of an earlier process has begun.
func (e *envoys) watch(ctx context.Context) {
	// An Envoy that does not answer has not started yet, and keeps connections.
	_ = e.each(ctx, (*envoy.Admin).KeepConnections)
	e.look(ctx)
	every(ctx, compareEvery, func(now time.Time) {
		e.look(ctx)
		e.compare(ctx, now)
	})
}

// look sets the gauge of each Envoy.
func (e *envoys) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var all sync.WaitGroup
	for i, admin := range e.admins {
		all.Go(func() {
			up := 0.0
			if admin.Ready(ctx) == nil {
				up = 1
			}
			e.up.WithLabelValues(e.names[i]).Set(up)
		})
	}
	all.Wait()
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
