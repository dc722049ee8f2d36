// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

const waiterBody = 1 << 10

type wakeOptions struct {
	waiters     []int
	repeats     int
	keepalive   time.Duration
	holdgate    string
	concurrency int
	json        string
}

// wakeRow summarizes all repeats with one number of waiters.
type wakeRow struct {
	Waiters   int     `json:"waiters"`
	Committed bool    `json:"committed"`
	Repeats   int     `json:"repeats"`
	Min       float64 `json:"min_ms"`
	P50       float64 `json:"p50_ms"`
	P99       float64 `json:"p99_ms"`
	Max       float64 `json:"max_ms"`
}

// runWake is the subcommand "wake".
func runWake(ctx context.Context, args []string) error {
	var o wakeOptions
	flags := flag.NewFlagSet("wake", flag.ContinueOnError)
	waiters := flags.String("waiters", "1,100,1000", "numbers of held requests")
	flags.IntVar(&o.repeats, "repeats", 5, "wakes of each number; a single waiter gets ten times as many")
	flags.DurationVar(&o.keepalive, "keepalive", 2*time.Second, "keepalive interval of the waiters that have had one")
	flags.StringVar(&o.holdgate, "holdgate", "bin/holdgate", "the holdgate binary")
	flags.IntVar(&o.concurrency, "concurrency", 2, "worker threads of Envoy")
	flags.StringVar(&o.json, "json", "", "file that gets the rows as JSON")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var err error
	if o.waiters, err = parseList(*waiters, parseWaiters); err != nil {
		return err
	}
	if o.repeats < 1 || o.keepalive <= 0 || o.concurrency < 1 {
		return errors.New("-repeats, -keepalive and -concurrency must be positive")
	}
	var rows []wakeRow
	for _, committed := range []bool{false, true} {
		bed, err := newTestbed(o.concurrency)
		if err != nil {
			return err
		}
		more, err := wakes(ctx, bed, o, committed)
		if err := bed.close(err); err != nil {
			return err
		}
		rows = append(rows, more...)
	}
	printWakes(rows)
	if o.json == "" {
		return nil
	}
	return writeJSON(o.json, rows)
}

// wakes starts its own Holdgate, because the keepalive interval is a setting of the
// process.
func wakes(ctx context.Context, b *testbed, o wakeOptions, committed bool) ([]wakeRow, error) {
	keepalive := time.Hour
	if committed {
		keepalive = o.keepalive
	}
	backend, h, err := startCold(ctx, b, o.holdgate, "--wake-keepalive", keepalive.String())
	if err != nil {
		return nil, err
	}
	var rows []wakeRow
	for _, n := range o.waiters {
		w := wake{holdgate: h, backend: backend, waiters: n, committed: committed}
		repeats := o.repeats
		if n == 1 && !committed {
			repeats *= 10
		}
		var all []time.Duration
		for range repeats {
			times, err := w.run(ctx)
			if err != nil {
				return nil, fmt.Errorf("waking %d waiters: %w", n, err)
			}
			all = append(all, times...)
		}
		slices.Sort(all)
		rows = append(rows, wakeRow{
			Waiters: n, Committed: committed, Repeats: repeats,
			Min: milliseconds(all[0]), P50: milliseconds(quantile(all, 0.50)),
			P99: milliseconds(quantile(all, 0.99)), Max: milliseconds(all[len(all)-1]),
		})
	}
	return rows, nil
}

// startCold starts backend, Holdgate and Envoy, and no agent.
func startCold(ctx context.Context, b *testbed, binary string, more ...string) (backend string, h *holdgate, err error) {
	if backend, err = b.startBackend(ctx); err != nil {
		return "", nil, err
	}
	h, err = startHoldgate(ctx, b, systemHoldgate, binary, append(more, "--wake-hold-max", "20000", "--wake-hold-max-total", "20000", "--wake-hold-budget", "10m")...)
	if err != nil {
		return "", nil, err
	}
	process, err := startEnvoy(ctx, b, systemHoldgate, b.path(systemHoldgate+"/extproc.sock"))
	if err != nil {
		return "", nil, err
	}
	h.envoy = envoyInFront{pid: process.Pid(), edge: process.EdgeAddr(), admin: process.Admin()}
	return backend, h, nil
}

// wake is one registration that releases all waiters.
type wake struct {
	holdgate  *holdgate
	backend   string
	waiters   int
	committed bool
}

func (w wake) run(ctx context.Context) ([]time.Duration, error) {
	a, err := dialAgent(ctx, w.holdgate.agents)
	if err != nil {
		return nil, err
	}
	waiters, err := openWaiters(ctx, w.holdgate.envoy.edge, w.waiters, waiterBody)
	if err != nil {
		return nil, errors.Join(err, a.leave())
	}
	times, err := w.release(ctx, a, waiters)
	err = errors.Join(err, closeWaiters(waiters))
	// The model must be asleep again before the next repeat begins.
	return times, errors.Join(err, a.leave())
}

func (w wake) release(ctx context.Context, a *agent, waiters []*waiter) ([]time.Duration, error) {
	if err := w.holdgate.waitDemand(ctx, len(waiters)); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = closeWaiters(waiters) })
	defer stop()
	heads := make([]head, len(waiters))
	if w.committed {
		if err := each(waiters, func(i int) (err error) { heads[i], err = waiters[i].waitHead(); return err }); err != nil {
			return nil, err
		}
	}
	answered := make(chan error, 1)
	go func() {
		answered <- each(waiters, func(i int) (err error) {
			if !w.committed {
				if heads[i], err = waiters[i].waitHead(); err != nil {
					return err
				}
			}
			return waiters[i].waitAnswer(heads[i])
		})
	}()
	begin, err := a.join(w.backend)
	if err != nil {
		return nil, err
	}
	if err := <-answered; err != nil {
		return nil, err
	}
	times := make([]time.Duration, len(waiters))
	for i, waiter := range waiters {
		times[i] = waiter.sinceRegistration(begin)
		if times[i] <= 0 {
			return nil, errors.New("a waiter was answered before the registration")
		}
	}
	return times, a.waitWelcome(ctx)
}

// each runs f for every waiter at once. A connection that stays silent results in an
// error.
func each(waiters []*waiter, f func(i int) error) error {
	var group errgroup.Group
	for i, waiter := range waiters {
		group.Go(func() error {
			if err := waiter.conn.SetReadDeadline(time.Now().Add(connTimeout)); err != nil {
				return fmt.Errorf("setting a deadline: %w", err)
			}
			return f(i)
		})
	}
	return group.Wait()
}

func printWakes(rows []wakeRow) {
	fmt.Printf("From registration to each waiter's first byte, ms.\n\n" +
		"| waiters | keepalive sent before | wakes | min | p50 | p99 | max |\n|---|---|---|---|---|---|---|\n")
	for _, r := range rows {
		committed := "no"
		if r.Committed {
			committed = "yes"
		}
		fmt.Printf("| %d | %s | %d | %.2f | %.2f | %.2f | %.2f |\n",
			r.Waiters, committed, r.Repeats, r.Min, r.P50, r.P99, r.Max)
	}
}
