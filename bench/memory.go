// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json/v2"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"time"
)

type memoryOptions struct {
	held        int
	size        int
	settle      time.Duration
	keepalive   time.Duration
	holdgate    string
	concurrency int
	json        string
}

// footprint is the memory that the two processes use, in bytes.
type footprint struct {
	HoldgateRSS   float64 `json:"holdgate_rss"`
	HoldgateHeap  float64 `json:"holdgate_heap"`
	HoldgateStack float64 `json:"holdgate_stack"`
	EnvoyRSS      float64 `json:"envoy_rss"`
	EnvoyHeap     float64 `json:"envoy_heap"`
}

// memoryReport has the footprint at rest, and what each held request adds to it.
type memoryReport struct {
	Held      int       `json:"held"`
	Body      int       `json:"body_bytes"`
	Rest      footprint `json:"rest"`
	Silent    footprint `json:"silent_per_request"`
	Committed footprint `json:"after_keepalive_per_request"`
	After     footprint `json:"after_release_above_rest"`
}

// runMemory is the subcommand "memory".
func runMemory(ctx context.Context, args []string) error {
	var o memoryOptions
	flags := flag.NewFlagSet("memory", flag.ContinueOnError)
	held := flags.String("held", "5000", "held requests")
	size := flags.String("size", "1KiB", "size of each body")
	flags.DurationVar(&o.settle, "settle", 3*time.Second, "rest before each measurement")
	flags.DurationVar(&o.keepalive, "keepalive", 15*time.Second, "keepalive interval; longer than it takes to open all requests, and -settle")
	flags.StringVar(&o.holdgate, "holdgate", "bin/holdgate", "the holdgate binary")
	flags.IntVar(&o.concurrency, "concurrency", 2, "worker threads of Envoy")
	flags.StringVar(&o.json, "json", "", "file that gets the numbers as JSON")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var err error
	if o.held, err = parseWaiters(*held); err != nil {
		return err
	}
	if o.size, err = parseSize(*size); err != nil {
		return err
	}
	if o.settle <= 0 || o.keepalive <= o.settle || o.concurrency < 1 {
		return errors.New("-settle and -concurrency must be positive, -keepalive longer than -settle")
	}
	bed, err := newTestbed(o.concurrency)
	if err != nil {
		return err
	}
	return bed.close(memory(ctx, bed, o))
}

func memory(ctx context.Context, b *testbed, o memoryOptions) error {
	backend, h, err := startCold(ctx, b, o.holdgate, "--wake-keepalive", o.keepalive.String())
	if err != nil {
		return err
	}
	// Run one wake before the measurement: memory that is allocated once and kept is
	// not part of a held request.
	warm := wake{holdgate: h, backend: backend, waiters: min(o.held, 100)}
	if _, err := warm.run(ctx); err != nil {
		return fmt.Errorf("warming up: %w", err)
	}
	report := memoryReport{Held: o.held, Body: o.size}
	if report.Rest, err = h.settled(ctx, o.settle); err != nil {
		return err
	}
	waiters, err := openWaiters(ctx, h.envoy.edge, o.held, o.size)
	if err != nil {
		return err
	}
	err = report.hold(ctx, h, waiters, o)
	if err := errors.Join(err, closeWaiters(waiters)); err != nil {
		return err
	}
	if err := h.waitDemand(ctx, 0); err != nil {
		return err
	}
	after, err := h.settled(ctx, o.settle)
	if err != nil {
		return err
	}
	report.After = after.minus(report.Rest, 1)
	report.print()
	if o.json == "" {
		return nil
	}
	return writeJSON(o.json, report)
}

// hold measures while all requests are silent, and again when each has had a keepalive.
func (r *memoryReport) hold(ctx context.Context, h *holdgate, waiters []*waiter, o memoryOptions) error {
	if err := h.waitDemand(ctx, len(waiters)); err != nil {
		return err
	}
	silent, err := h.settled(ctx, o.settle)
	if err != nil {
		return err
	}
	// Checking each of them would take longer than an interval.
	for i := 0; i < len(waiters); i += 100 {
		if err := waiters[i].silent(); err != nil {
			return err
		}
	}
	r.Silent = silent.minus(r.Rest, len(waiters))
	if err := each(waiters, func(i int) error { _, err := waiters[i].waitHead(); return err }); err != nil {
		return err
	}
	committed, err := h.settled(ctx, o.settle)
	if err != nil {
		return err
	}
	r.Committed = committed.minus(r.Rest, len(waiters))
	return nil
}

// settled returns the footprint after a rest.
func (h *holdgate) settled(ctx context.Context, rest time.Duration) (footprint, error) {
	timer := time.NewTimer(rest)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return footprint{}, ctx.Err()
	}
	return h.footprint(ctx)
}

func (h *holdgate) footprint(ctx context.Context) (footprint, error) {
	var f footprint
	for _, m := range []struct {
		into *float64
		pid  int
	}{{&f.HoldgateRSS, h.pid}, {&f.EnvoyRSS, h.envoy.pid}} {
		rss, err := residentBytes(m.pid)
		if err != nil {
			return f, err
		}
		*m.into = float64(rss)
	}
	for _, m := range []struct {
		into   *float64
		series string
	}{{&f.HoldgateHeap, "go_memstats_heap_inuse_bytes"}, {&f.HoldgateStack, "go_memstats_stack_inuse_bytes"}} {
		value, found, err := h.metric(ctx, m.series)
		if err != nil {
			return f, err
		}
		if !found {
			return f, fmt.Errorf("holdgate's metrics have no %s", m.series)
		}
		*m.into = value
	}
	allocated, err := h.envoyAllocated(ctx)
	f.EnvoyHeap = allocated
	return f, err
}

// envoyAllocated returns how much memory Envoy's allocator has handed out.
func (h *holdgate) envoyAllocated(ctx context.Context) (float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, h.envoy.admin+"/memory", http.NoBody)
	if err != nil {
		return 0, fmt.Errorf("reading Envoy's memory: %w", err)
	}
	page, err := h.do(request)
	if err != nil {
		return 0, err
	}
	// Envoy writes 64-bit numbers as JSON strings.
	var memory struct {
		Allocated int64 `json:"allocated,string"`
	}
	if err := json.Unmarshal(page, &memory, json.RejectUnknownMembers(false)); err != nil {
		return 0, fmt.Errorf("reading Envoy's memory: %w", err)
	}
	return float64(memory.Allocated), nil
}

func (f footprint) minus(rest footprint, requests int) footprint {
	share := func(value, rest float64) float64 { return (value - rest) / float64(requests) }
	return footprint{
		HoldgateRSS:   share(f.HoldgateRSS, rest.HoldgateRSS),
		HoldgateHeap:  share(f.HoldgateHeap, rest.HoldgateHeap),
		HoldgateStack: share(f.HoldgateStack, rest.HoldgateStack),
		EnvoyRSS:      share(f.EnvoyRSS, rest.EnvoyRSS),
		EnvoyHeap:     share(f.EnvoyHeap, rest.EnvoyHeap),
	}
}

func (r memoryReport) print() {
	fmt.Printf("%d held requests of %s. At rest and after the release in MiB, held in KiB a request above rest.\n\n"+
		"| | Holdgate RSS | heap in use | stacks | Envoy RSS | allocated |\n|---|---|---|---|---|---|\n", r.Held, sizeText(r.Body))
	for _, row := range []struct {
		name string
		f    footprint
		unit float64
	}{
		{"at rest, MiB", r.Rest, 1 << 20},
		{"held, silent, KiB each", r.Silent, 1 << 10},
		{"held, after a keepalive, KiB each", r.Committed, 1 << 10},
		{"above rest after the release, MiB", r.After, 1 << 20},
	} {
		fmt.Printf("| %s | %.1f | %.1f | %.1f | %.1f | %.1f |\n", row.name, row.f.HoldgateRSS/row.unit,
			row.f.HoldgateHeap/row.unit, row.f.HoldgateStack/row.unit, row.f.EnvoyRSS/row.unit, row.f.EnvoyHeap/row.unit)
	}
}
