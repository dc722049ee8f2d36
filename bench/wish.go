// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"time"

	"github.com/kedacore/keda/v2/pkg/scalers/externalscaler"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/holdgate/holdgate/agentreg/agentregpb"
)

const (
	// hookCooldown is shorter than the pause between two wishes, so that each has its
	// call.
	hookCooldown = 10 * time.Millisecond
	wishPause    = 30 * time.Millisecond
)

// wishRow is how fast all wishes were told to one of those who can wake the model.
type wishRow struct {
	Told string  `json:"told"`
	N    int     `json:"wishes"`
	Min  float64 `json:"min_ms"`
	P50  float64 `json:"p50_ms"`
	P99  float64 `json:"p99_ms"`
	Max  float64 `json:"max_ms"`
}

// runWish is the subcommand "wish".
func runWish(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("wish", flag.ContinueOnError)
	repeats := flags.Int("repeats", 200, "wishes")
	binary := flags.String("holdgate", "bin/holdgate", "the holdgate binary")
	concurrency := flags.Int("concurrency", 2, "worker threads of Envoy")
	file := flags.String("json", "", "file that gets the rows as JSON")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *repeats < 1 || *concurrency < 1 {
		return errors.New("-repeats and -concurrency must be positive")
	}
	bed, err := newBed(*concurrency)
	if err != nil {
		return err
	}
	rows, err := wishes(ctx, bed, *binary, *repeats)
	if err := bed.close(err); err != nil {
		return err
	}
	fmt.Printf("From a request's first byte to those who can wake its model, ms.\n\n| told | wishes | min | p50 | p99 | max |\n|---|---|---|---|---|---|\n")
	for _, r := range rows {
		fmt.Printf("| %s | %d | %.2f | %.2f | %.2f | %.2f |\n", r.Told, r.N, r.Min, r.P50, r.P99, r.Max)
	}
	if *file == "" {
		return nil
	}
	return writeJSON(*file, rows)
}

// listeners are those who are told of each wish, but for the agent, of which each
// wish has its own.
type listeners struct {
	holdgate *holdgate
	keda     grpc.ServerStreamingClient[externalscaler.IsActiveResponse]
	hook     chan time.Time // of the first call since it was emptied
}

func wishes(ctx context.Context, b *bed, binary string, repeats int) ([]wishRow, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	_, h, err := startCold(ctx, b, binary, "--keda-listen", "127.0.0.1:0", "--wake-linger", "0s")
	if err != nil {
		return nil, err
	}
	l := listeners{holdgate: h, hook: make(chan time.Time, 1)}
	hook := httptest.NewServer(http.HandlerFunc(l.called))
	defer hook.Close()
	if err := h.putMap(ctx, fmt.Sprintf(`{"generation":2,"placements":[{"model":%q,"kind":"chat","site":"bench","scale_from_zero":true,`+
		`"wake":{"url":%q,"cooldown":%q}}]}`, benchModel, hook.URL, hookCooldown)); err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(h.keda, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connecting as KEDA: %w", err)
	}
	defer conn.Close()
	ref := &externalscaler.ScaledObjectRef{Name: "bench", Namespace: "bench", ScalerMetadata: map[string]string{"model": benchModel}}
	if l.keda, err = externalscaler.NewExternalScalerClient(conn).StreamIsActive(ctx, ref); err != nil {
		return nil, fmt.Errorf("watching as KEDA: %w", err)
	}
	names := [3]string{"KEDA's client", "the webhook", "the agent"}
	var all [3][]time.Duration
	for range repeats {
		times, err := l.wish(ctx)
		if err != nil {
			return nil, err
		}
		for i, t := range times {
			all[i] = append(all[i], t)
		}
	}
	var rows []wishRow
	for i, times := range all {
		slices.Sort(times)
		rows = append(rows, wishRow{
			Told: names[i], N: len(times), Min: milliseconds(times[0]), P50: milliseconds(quantile(times, 0.50)),
			P99: milliseconds(quantile(times, 0.99)), Max: milliseconds(times[len(times)-1]),
		})
	}
	return rows, nil
}

func (l listeners) called(http.ResponseWriter, *http.Request) {
	select {
	case l.hook <- time.Now():
	default:
	}
}

// wish makes one request, and takes it back when all have heard of it.
func (l listeners) wish(ctx context.Context) (times [3]time.Duration, err error) {
	a, err := l.sleeper(ctx)
	if err != nil {
		return times, err
	}
	defer func() { err = errors.Join(err, a.leave()) }()
	client, err := dial(ctx, l.holdgate.envoy.edge)
	if err != nil {
		return times, err
	}
	defer client.Close()
	body, err := chatBody(waiterBody)
	if err != nil {
		return times, err
	}
	begin := time.Now()
	if _, err := client.Write(rawRequest(body)); err != nil {
		return times, fmt.Errorf("sending a request: %w", err)
	}
	told, err := l.told(ctx, a)
	if err != nil {
		return times, err
	}
	for i, t := range told {
		times[i] = t.Sub(begin)
	}
	if err := client.Close(); err != nil {
		return times, fmt.Errorf("leaving: %w", err)
	}
	return times, l.holdgate.waitMetric(ctx, `hivenet_wake_wanted{model="`+benchModel+`"}`, 0)
}

// sleeper is an agent that can be woken. When it is there, all that is told of the
// wish before has been told.
func (l listeners) sleeper(ctx context.Context) (*agent, error) {
	a, err := dialAgent(ctx, l.holdgate.agents)
	if err != nil {
		return nil, err
	}
	a.state = agentregpb.State_STATE_ASLEEP
	_, err = a.join("127.0.0.1:1")
	if err == nil {
		err = a.welcomed(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, a.leave())
	}
	time.Sleep(wishPause)
	select {
	case <-l.hook: // the last wish was called again
	default:
	}
	return a, nil
}

// told waits until each has heard. The hook may be called again meanwhile.
func (l listeners) told(ctx context.Context, a *agent) (at [3]time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	keda, failed := make(chan time.Time, 1), make(chan error, 1)
	go func() {
		if _, err := l.keda.Recv(); err != nil {
			failed <- fmt.Errorf("hearing as KEDA: %w", err)
			return
		}
		keda <- time.Now()
	}()
	for i, heard := range []<-chan time.Time{keda, l.hook, a.woken} {
		select {
		case at[i] = <-heard:
		case err := <-failed:
			return at, err
		case <-ctx.Done():
			return at, fmt.Errorf("waiting for all to be told: %w", ctx.Err())
		}
	}
	return at, nil
}
