// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The systems, in the order in which each round runs them. The bare floor has no access
// log, which Holdgate cannot do without; it runs only on request, like an earlier Holdgate.
const (
	systemBackend  = "backend"
	systemEnvoy    = "envoy"
	systemBare     = "bare"
	systemFloor    = "floor"
	systemBefore   = "before"
	systemHoldgate = "holdgate"
	systemPoliced  = "policed"
)

// system is one of the compared systems, which answers the benchmark's requests.
type system struct {
	name string
	addr string
	pids []int // the processes between client and backend
}

// round is one run of one system.
type round struct {
	P50  float64 `json:"p50_ms"`
	P99  float64 `json:"p99_ms"`
	Rate float64 `json:"rps"`
	CPU  float64 `json:"cpu_ms"` // of the system's own processes, a request
}

// cell is one body size with one number of clients.
type cell struct {
	size, clients int
	rounds        map[string][]round
}

type speedOptions struct {
	duration, warmup time.Duration
	rounds           int
	sizes, clients   []int
	systems          []string
	holdgate, before string
	concurrency      int
	json             string
}

// runSpeed is the subcommand "speed".
func runSpeed(ctx context.Context, args []string) error {
	options, err := parseSpeed(args)
	if err != nil {
		return err
	}
	bed, err := newTestbed(options.concurrency)
	if err != nil {
		return err
	}
	return bed.close(speed(ctx, bed, options))
}

func parseSpeed(args []string) (speedOptions, error) {
	var o speedOptions
	flags := flag.NewFlagSet("speed", flag.ContinueOnError)
	quick := flags.Bool("quick", false, "a run of about 20 seconds, to see that it works: its numbers mean little")
	flags.DurationVar(&o.duration, "duration", 2*time.Second, "how long a system is measured in a round")
	flags.DurationVar(&o.warmup, "warmup", 300*time.Millisecond, "how long it runs before that")
	flags.IntVar(&o.rounds, "rounds", 5, "how many times all systems take their turn")
	sizes := flags.String("sizes", "1KiB,64KiB,1MiB", "sizes of the request body")
	clients := flags.String("clients", "1,8,32", "numbers of clients")
	systems := flags.String("systems", "backend,envoy,floor,holdgate", "what is measured; also bare, the floor without access log, policed, and before")
	flags.StringVar(&o.holdgate, "holdgate", "bin/holdgate", "the holdgate binary")
	flags.StringVar(&o.before, "before", "", "an earlier holdgate binary, which the system before runs")
	flags.IntVar(&o.concurrency, "concurrency", 2, "worker threads of each Envoy")
	flags.StringVar(&o.json, "json", "", "file that gets every round as JSON")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if *quick {
		o.duration, o.warmup, o.rounds = 400*time.Millisecond, 100*time.Millisecond, 2
		*sizes, *clients = "1KiB,64KiB", "1,8"
	}
	var err error
	if o.sizes, err = parseList(*sizes, parseSize); err != nil {
		return o, err
	}
	if o.clients, err = parseList(*clients, parseClients); err != nil {
		return o, err
	}
	if o.systems, err = parseList(*systems, parseSystem); err != nil {
		return o, err
	}
	if slices.Contains(o.systems, systemBefore) != (o.before != "") {
		return o, fmt.Errorf("-before PATH and the system before belong together: name both, or neither")
	}
	if o.rounds < 1 || o.duration <= 0 || o.warmup < 0 || o.concurrency < 1 {
		return o, fmt.Errorf("-rounds, -duration and -concurrency must be positive, -warmup not negative")
	}
	return o, nil
}

func allSystems() []string {
	return []string{systemBackend, systemEnvoy, systemBare, systemFloor, systemBefore, systemHoldgate, systemPoliced}
}

func parseSystem(text string) (string, error) {
	if !slices.Contains(allSystems(), text) {
		return "", fmt.Errorf("system %q: want one of %s", text, strings.Join(allSystems(), ", "))
	}
	return text, nil
}

// parseClients limits the number of clients, because cores and loopback ports are
// limited.
func parseClients(text string) (int, error) { return parseBounded(text, 1000) }

// parseWaiters limits the number of waiters: each takes a loopback port and three open
// files in three processes.
func parseWaiters(text string) (int, error) { return parseBounded(text, 10000) }

func parseBounded(text string, most int) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, fmt.Errorf("number %q: want 1 to %d", text, most)
	}
	return n, nil
}

func parseList[T any](text string, parse func(string) (T, error)) ([]T, error) {
	var list []T
	for part := range strings.SplitSeq(text, ",") {
		value, err := parse(strings.TrimSpace(part))
		if err != nil {
			return nil, err
		}
		list = append(list, value)
	}
	return list, nil
}

func speed(ctx context.Context, bed *testbed, o speedOptions) error {
	systems, err := startSystems(ctx, bed, o)
	if err != nil {
		return err
	}
	var cells []cell
	for _, size := range o.sizes {
		for _, clients := range o.clients {
			c := cell{size: size, clients: clients, rounds: map[string][]round{}}
			fmt.Fprintf(os.Stderr, "%s, %d clients\n", sizeText(size), clients)
			if err := c.measure(ctx, systems, o); err != nil {
				return err
			}
			cells = append(cells, c)
		}
	}
	return reportSpeed(os.Stdout, cells, o)
}

// measure runs every system once in each round, so that a temporary disturbance of the
// machine affects all of them.
func (c *cell) measure(ctx context.Context, systems []system, o speedOptions) error {
	body, err := chatBody(c.size)
	if err != nil {
		return err
	}
	for range o.rounds {
		for _, s := range systems {
			r, err := s.measure(ctx, load{
				addr:     s.addr,
				request:  rawRequest(body),
				want:     backendAnswer(int64(len(body))),
				clients:  c.clients,
				warmup:   o.warmup,
				duration: o.duration,
			})
			if err != nil {
				return fmt.Errorf("measuring %s: %w", s.name, err)
			}
			c.rounds[s.name] = append(c.rounds[s.name], r)
		}
	}
	return nil
}

func (s system) measure(ctx context.Context, l load) (round, error) {
	before, err := cpuTimeOf(s.pids)
	if err != nil {
		return round{}, err
	}
	r, err := l.run(ctx)
	if err != nil {
		return round{}, err
	}
	after, err := cpuTimeOf(s.pids)
	if err != nil {
		return round{}, err
	}
	if len(r.latencies) == 0 {
		return round{}, fmt.Errorf("no request was answered within %v", l.duration)
	}
	return round{
		P50:  milliseconds(quantile(r.latencies, 0.50)),
		P99:  milliseconds(quantile(r.latencies, 0.99)),
		Rate: r.rate,
		CPU:  milliseconds(after-before) / float64(r.requests),
	}, nil
}

func reportSpeed(w io.Writer, cells []cell, o speedOptions) error {
	report := buildReport(cells, o)
	if err := report.markdown(w); err != nil {
		return err
	}
	if o.json == "" {
		return nil
	}
	return writeJSON(o.json, report)
}
