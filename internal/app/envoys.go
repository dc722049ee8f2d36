// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"time"

	"github.com/rs/zerolog"

	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc"
)

const (
	// lookEvery is the time between two looks at what the Envoys carry.
	lookEvery = 5 * time.Second
	// lookLimit bounds a look: its numbers must be of about the same moment.
	lookLimit = 2 * time.Second
)

// envoys are the Envoys of --envoy-admin. The numbers of requests that they carry show which
// access-log records were lost.
type envoys struct {
	admins []*envoy.Admin
	data   *extproc.Server
	log    zerolog.Logger
	last   extproc.Look // without a time: there was none
	silent bool         // the last look failed
}

func newEnvoys(at []string, data *extproc.Server, log zerolog.Logger) *envoys {
	e := &envoys{data: data, log: log}
	for _, one := range at {
		e.admins = append(e.admins, envoy.NewAdmin(one))
	}
	return e
}

// watch looks while something is carried, until ctx ends.
func (e *envoys) watch(ctx context.Context) {
	every(ctx, lookEvery, func(now time.Time) { e.look(ctx, now) })
}

func (e *envoys) look(ctx context.Context, now time.Time) {
	last := e.last
	e.last = extproc.Look{}
	if !e.data.Carries(now.Add(-lookEvery)) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
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

// failed logs the first of several failures.
func (e *envoys) failed(err error) {
	if !e.silent {
		e.log.Warn().Err(err).Msg("--envoy-admin: lost access-log records are not noticed until it answers")
	}
	e.silent = true
}

// engineHasFewer frees slots by the number of requests that an engine reports. An engine
// does not count a request that it has not read yet, so the numbers of Envoys, where there
// are any, are used instead.
func (a *App) engineHasFewer(agent *agentreg.AgentInfo, most int, first time.Time) {
	if len(a.c.EnvoyAdmin) == 0 {
		a.data.Free(agent.Address, most, first)
	}
}
