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
	// hookCooldown is shorter than the pause between two needs, so that each causes a
	// call.
	hookCooldown = 10 * time.Millisecond
	needPause    = 30 * time.Millisecond
)

// needRow summarizes how fast one receiver was notified of all needs.
type needRow struct {
	Notified string  `json:"notified"`
	N        int     `json:"needs"`
	Min      float64 `json:"min_ms"`
	P50      float64 `json:"p50_ms"`
	P99      float64 `json:"p99_ms"`
	Max      float64 `json:"max_ms"`
}

// runNeed is the subcommand "need".
func runNeed(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("need", flag.ContinueOnError)
	repeats := flags.Int("repeats", 200, "how many times a model becomes needed")
	binary := flags.String("holdgate", "bin/holdgate", "the holdgate binary")
	concurrency := flags.Int("concurrency", 2, "worker threads of Envoy")
	file := flags.String("json", "", "file that gets the rows as JSON")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *repeats < 1 || *concurrency < 1 {
		return errors.New("-repeats and -concurrency must be positive")
	}
	bed, err := newTestbed(*concurrency)
	if err != nil {
		return err
	}
	rows, err := measureNeeds(ctx, bed, *binary, *repeats)
	if err := bed.close(err); err != nil {
		return err
	}
	fmt.Printf("From a request's first byte to whoever can wake its model, ms.\n\n| notified | needs | min | p50 | p99 | max |\n|---|---|---|---|---|---|\n")
	for _, r := range rows {
		fmt.Printf("| %s | %d | %.2f | %.2f | %.2f | %.2f |\n", r.Notified, r.N, r.Min, r.P50, r.P99, r.Max)
	}
	if *file == "" {
		return nil
	}
	return writeJSON(*file, rows)
}

// notifiers are the receivers that live as long as the benchmark. Each need also has a
// new agent.
type notifiers struct {
	holdgate *holdgate
	keda     grpc.ServerStreamingClient[externalscaler.IsActiveResponse]
	hook     chan time.Time // the time of the first call since it was drained
}

func measureNeeds(ctx context.Context, b *testbed, binary string, repeats int) ([]needRow, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	_, h, err := startCold(ctx, b, binary, "--keda-listen", "127.0.0.1:0", "--wake-linger", "0s")
	if err != nil {
		return nil, err
	}
	n := notifiers{holdgate: h, hook: make(chan time.Time, 1)}
	hook := httptest.NewServer(http.HandlerFunc(n.webhook))
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
	if n.keda, err = externalscaler.NewExternalScalerClient(conn).StreamIsActive(ctx, ref); err != nil {
		return nil, fmt.Errorf("watching as KEDA: %w", err)
	}
	names := [3]string{"KEDA's client", "the webhook", "the agent"}
	var all [3][]time.Duration
	for range repeats {
		times, err := n.measure(ctx)
		if err != nil {
			return nil, err
		}
		for i, t := range times {
			all[i] = append(all[i], t)
		}
	}
	var rows []needRow
	for i, times := range all {
		slices.Sort(times)
		rows = append(rows, needRow{
			Notified: names[i], N: len(times), Min: milliseconds(times[0]), P50: milliseconds(quantile(times, 0.50)),
			P99: milliseconds(quantile(times, 0.99)), Max: milliseconds(times[len(times)-1]),
		})
	}
	return rows, nil
}

func (n notifiers) webhook(http.ResponseWriter, *http.Request) {
	select {
	case n.hook <- time.Now():
	default:
	}
}

// measure sends one request, and closes its connection when all receivers have been
// notified.
func (n notifiers) measure(ctx context.Context) (times [3]time.Duration, err error) {
	a, err := n.asleepAgent(ctx)
	if err != nil {
		return times, err
	}
	defer func() { err = errors.Join(err, a.leave()) }()
	client, err := dial(ctx, n.holdgate.envoy.edge)
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
	notified, err := n.waitNotified(ctx, a)
	if err != nil {
		return times, err
	}
	for i, t := range notified {
		times[i] = t.Sub(begin)
	}
	if err := client.Close(); err != nil {
		return times, fmt.Errorf("leaving: %w", err)
	}
	return times, n.holdgate.waitMetric(ctx, `hivenet_wake_wanted{model="`+benchModel+`"}`, 0)
}

// asleepAgent returns an agent that can be woken. It waits until no notification of the
// previous need can arrive any more.
func (n notifiers) asleepAgent(ctx context.Context) (*agent, error) {
	a, err := dialAgent(ctx, n.holdgate.agents)
	if err != nil {
		return nil, err
	}
	a.state = agentregpb.State_STATE_ASLEEP
	_, err = a.join("127.0.0.1:1")
	if err == nil {
		err = a.waitWelcome(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, a.leave())
	}
	time.Sleep(needPause)
	select {
	case <-n.hook: // the webhook was called again for the previous need
	default:
	}
	return a, nil
}

// waitNotified returns when each receiver was notified. The webhook may be called again
// meanwhile.
func (n notifiers) waitNotified(ctx context.Context, a *agent) (at [3]time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	keda, failed := make(chan time.Time, 1), make(chan error, 1)
	go func() {
		if _, err := n.keda.Recv(); err != nil {
			failed <- fmt.Errorf("receiving as KEDA: %w", err)
			return
		}
		keda <- time.Now()
	}()
	for i, receiver := range []<-chan time.Time{keda, n.hook, a.woken} {
		select {
		case at[i] = <-receiver:
		case err := <-failed:
			return at, err
		case <-ctx.Done():
			return at, fmt.Errorf("waiting for all to be notified: %w", ctx.Err())
		}
	}
	return at, nil
}
