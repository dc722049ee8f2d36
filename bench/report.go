// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"
)

// speedReport is the report of one run.
type speedReport struct {
	Time     time.Time   `json:"time"`
	Go       string      `json:"go"`
	CPUs     int         `json:"cpus"`
	Duration string      `json:"duration"`
	Rounds   int         `json:"rounds"`
	Rows     []reportRow `json:"rows"`
}

// reportRow is one system in one cell: medians over the rounds, and the ratio to the
// floor of the same round.
type reportRow struct {
	Body      int     `json:"body_bytes"`
	Clients   int     `json:"clients"`
	System    string  `json:"system"`
	P50       float64 `json:"p50_ms"`
	P99       float64 `json:"p99_ms"`
	Rate      float64 `json:"rps"`
	CPU       float64 `json:"cpu_ms"`
	P50Ratio  *spread `json:"p50_ratio,omitempty"`
	RateRatio *spread `json:"rps_ratio,omitempty"`
	Rounds    []round `json:"rounds"`
}

func buildReport(cells []cell, o speedOptions) speedReport {
	report := speedReport{
		Time: time.Now().UTC(), Go: runtime.Version(), CPUs: runtime.NumCPU(),
		Duration: o.duration.String(), Rounds: o.rounds,
	}
	for _, c := range cells {
		for _, name := range allSystems() {
			if rounds := c.rounds[name]; len(rounds) > 0 {
				report.Rows = append(report.Rows, buildRow(c, name, rounds))
			}
		}
	}
	return report
}

func buildRow(c cell, name string, rounds []round) reportRow {
	row := reportRow{Body: c.size, Clients: c.clients, System: name, Rounds: rounds}
	row.P50 = median(column(rounds, func(r round) float64 { return r.P50 }))
	row.P99 = median(column(rounds, func(r round) float64 { return r.P99 }))
	row.Rate = median(column(rounds, func(r round) float64 { return r.Rate }))
	row.CPU = median(column(rounds, func(r round) float64 { return r.CPU }))
	floor := c.rounds[systemFloor]
	if len(floor) != len(rounds) {
		return row
	}
	var p50s, rates []float64
	for i := range rounds {
		p50s = append(p50s, rounds[i].P50/floor[i].P50)
		rates = append(rates, rounds[i].Rate/floor[i].Rate)
	}
	p50, rate := spreadOf(p50s), spreadOf(rates)
	row.P50Ratio, row.RateRatio = &p50, &rate
	return row
}

func column(rounds []round, of func(round) float64) []float64 {
	values := make([]float64, len(rounds))
	for i, r := range rounds {
		values[i] = of(r)
	}
	return values
}

func (s speedReport) markdown(w io.Writer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%d CPUs shared by all processes, %s, %d rounds of %s; medians, in brackets the extremes of the rounds.\n\n",
		s.CPUs, s.Go, s.Rounds, s.Duration)
	text.WriteString("| body | clients | system | p50 ms | p99 ms | requests/s | CPU ms a request | p50 ÷ floor | requests/s ÷ floor |\n")
	text.WriteString("|---|---|---|---|---|---|---|---|---|\n")
	for _, row := range s.Rows {
		fmt.Fprintf(&text, "| %s | %d | %s | %.3f | %.3f | %.0f | %s | %s | %s |\n",
			sizeText(row.Body), row.Clients, row.System, row.P50, row.P99, row.Rate,
			cpuText(row), ratioText(row, row.P50Ratio), ratioText(row, row.RateRatio))
	}
	_, err := io.WriteString(w, text.String())
	return err
}

func cpuText(row reportRow) string {
	if row.System == systemBackend {
		return "–"
	}
	return fmt.Sprintf("%.3f", row.CPU)
}

func ratioText(row reportRow, ratio *spread) string {
	if ratio == nil {
		return "–"
	}
	if row.System == systemFloor {
		return "1"
	}
	return fmt.Sprintf("%.2f (%.2f–%.2f)", ratio.Median, ratio.Min, ratio.Max)
}

func writeJSON(path string, value any) error {
	content, err := json.Marshal(value, jsontext.WithIndent("  "))
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return writeWhole(path, string(content)+"\n")
}
