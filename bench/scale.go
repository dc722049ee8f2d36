// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// scaleModels is the number of models of each agent in the table of agents.
const scaleModels = 64

type scaleOptions struct {
	maps, agents, holds, keys []int

	rest        time.Duration
	holdgate    string
	concurrency int
	json        string
}

// scaleRow is one size of one table. Fields without a column in the table are 0.
type scaleRow struct {
	N         int     `json:"n"`
	Push      float64 `json:"push_ms,omitzero"`
	Start     float64 `json:"start_ms,omitzero"`
	One       float64 `json:"one_model_ms,omitzero"`
	List      float64 `json:"list_ms,omitzero"`
	Join      float64 `json:"join_ms,omitzero"`
	Rest      float64 `json:"cpu_at_rest,omitzero"` // of one core
	Request   float64 `json:"request_ms,omitzero"`
	Release   float64 `json:"release_p50_ms,omitzero"`
	Last      float64 `json:"release_max_ms,omitzero"`
	Scrape    float64 `json:"scrape_ms"`
	ScrapeKiB float64 `json:"scrape_kib"`
	RSS       float64 `json:"rss_mib"`
}

// scaleTable defines what grows, and the columns of the rows.
type scaleTable struct {
	name    string
	sizes   []int
	row     func(ctx context.Context, b *testbed, binary string, n int) (scaleRow, error)
	columns []scaleColumn
}

type scaleColumn struct {
	title string
	of    func(scaleRow) float64
}

var (
	columnScrape = scaleColumn{"scrape ms", func(r scaleRow) float64 { return r.Scrape }}
	columnSize   = scaleColumn{"scrape KiB", func(r scaleRow) float64 { return r.ScrapeKiB }}
	columnRSS    = scaleColumn{"RSS MiB", func(r scaleRow) float64 { return r.RSS }}
)

func scaleTables(o scaleOptions) []scaleTable {
	return []scaleTable{
		{"placements", o.maps, scaleMap, []scaleColumn{
			{"push ms", func(r scaleRow) float64 { return r.Push }},
			{"one model ms", func(r scaleRow) float64 { return r.One }},
			{"all models ms", func(r scaleRow) float64 { return r.List }},
			columnScrape, columnSize, columnRSS,
		}},
		{"agents", o.agents, o.scaleAgents, []scaleColumn{
			{"all registered ms", func(r scaleRow) float64 { return r.Join }},
			{"CPU at rest, % of a core", func(r scaleRow) float64 { return 100 * r.Rest }},
			columnScrape, columnSize, columnRSS,
		}},
		{"held requests", o.holds, scaleHolds, []scaleColumn{
			{"release p50 ms", func(r scaleRow) float64 { return r.Release }},
			{"release max ms", func(r scaleRow) float64 { return r.Last }},
			columnScrape, columnSize, columnRSS,
		}},
		{"keys", o.keys, scaleKeys, []scaleColumn{
			{"start ms", func(r scaleRow) float64 { return r.Start }},
			{"request p50 ms", func(r scaleRow) float64 { return r.Request }},
			columnScrape, columnSize, columnRSS,
		}},
	}
}

// runScale is the subcommand "scale".
func runScale(ctx context.Context, args []string) error {
	var o scaleOptions
	flags := flag.NewFlagSet("scale", flag.ContinueOnError)
	maps := flags.String("maps", "10,1000,100000", "numbers of placements")
	agents := flags.String("agents", "10,100,1000", fmt.Sprintf("numbers of agents, each with %d models and a group of its own", scaleModels))
	holds := flags.String("holds", "100,1000,10000", "numbers of held requests")
	keys := flags.String("keys", "10,1000,100000", "numbers of keys, each of a tenant of its own")
	quick := flags.Bool("quick", false, "small numbers, to see that it works")
	flags.DurationVar(&o.rest, "rest", 10*time.Second, "how long the router's CPU is watched with its agents at rest; two heartbeats or more")
	flags.StringVar(&o.holdgate, "holdgate", "bin/holdgate", "the holdgate binary")
	flags.IntVar(&o.concurrency, "concurrency", 2, "worker threads of Envoy")
	flags.StringVar(&o.json, "json", "", "file that gets the rows as JSON")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *quick {
		*maps, *agents, *holds, *keys = "10,100", "2,10", "10,100", "10,100"
		o.rest = time.Second
	}
	for _, one := range []struct {
		into *[]int
		text string
		most int
	}{{&o.maps, *maps, 100_000}, {&o.agents, *agents, 1000}, {&o.holds, *holds, 10_000}, {&o.keys, *keys, 100_000}} {
		var err error
		*one.into, err = parseList(one.text, func(s string) (int, error) { return parseBounded(s, one.most) })
		if err != nil {
			return err
		}
	}
	if o.concurrency < 1 || o.rest <= 0 {
		return errors.New("-concurrency and -rest must be positive")
	}
	return scale(ctx, o)
}

// scale fills all tables. Each row uses new processes.
func scale(ctx context.Context, o scaleOptions) error {
	all := map[string][]scaleRow{}
	for _, table := range scaleTables(o) {
		for _, n := range table.sizes {
			b, err := newTestbed(o.concurrency)
			if err != nil {
				return err
			}
			row, err := table.row(ctx, b, o.holdgate, n)
			if err := b.close(err); err != nil {
				return fmt.Errorf("%d %s: %w", n, table.name, err)
			}
			row.N = n
			all[table.name] = append(all[table.name], row)
		}
		if err := table.print(os.Stdout, all[table.name]); err != nil {
			return err
		}
	}
	if o.json == "" {
		return nil
	}
	return writeJSON(o.json, all)
}

func (t scaleTable) print(w io.Writer, rows []scaleRow) error {
	var text strings.Builder
	text.WriteString("| " + t.name + " |")
	for _, c := range t.columns {
		text.WriteString(" " + c.title + " |")
	}
	text.WriteString("\n|---|" + strings.Repeat("---|", len(t.columns)) + "\n")
	for _, row := range rows {
		fmt.Fprintf(&text, "| %d |", row.N)
		for _, c := range t.columns {
			fmt.Fprintf(&text, " %s |", digits(c.of(row)))
		}
		text.WriteString("\n")
	}
	_, err := io.WriteString(w, text.String()+"\n")
	return err
}

// digits formats v with three significant digits, whole numbers in full.
func digits(v float64) string {
	if v >= 100 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// measure times a scrape, and reads the memory after it.
func (h *holdgate) measure(ctx context.Context, row *scaleRow) error {
	took, size, err := h.timedGet(ctx, "http://"+h.admin+"/metrics")
	if err != nil {
		return err
	}
	rss, err := residentBytes(h.pid)
	if err != nil {
		return err
	}
	row.Scrape, row.ScrapeKiB, row.RSS = milliseconds(took), float64(size)/(1<<10), float64(rss)/(1<<20)
	return nil
}

// timedGet reads a whole answer.
func (h *holdgate) timedGet(ctx context.Context, url string) (took time.Duration, size int, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, 0, fmt.Errorf("asking %s: %w", url, err)
	}
	request.Header.Set("authorization", "Bearer "+benchKey)
	begin := time.Now()
	body, err := h.do(request)
	return time.Since(begin), len(body), err
}

// typical returns the median time of several answers in milliseconds.
func (h *holdgate) typical(ctx context.Context, url string) (float64, error) {
	times := make([]time.Duration, 0, 20)
	for range cap(times) {
		took, _, err := h.timedGet(ctx, url)
		if err != nil {
			return 0, err
		}
		times = append(times, took)
	}
	slices.Sort(times)
	return milliseconds(quantile(times, 0.5)), nil
}
