// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdgate/holdgate/agentreg/agentregpb"
)

// scaleMap pushes a map of n placements, each of another model.
func scaleMap(ctx context.Context, b *testbed, binary string, n int) (row scaleRow, err error) {
	_, h, err := startCold(ctx, b, binary)
	if err != nil {
		return row, err
	}
	var text strings.Builder
	text.WriteString(`{"generation":2,"placements":[`)
	for i := range n {
		if i > 0 {
			text.WriteByte(',')
		}
		fmt.Fprintf(&text, `{"model":"m%d","kind":"chat","site":"bench","scale_from_zero":true}`, i)
	}
	text.WriteString("]}")
	begin := time.Now()
	if err := h.putMap(ctx, text.String()); err != nil {
		return row, err
	}
	row.Push = milliseconds(time.Since(begin))
	models := "http://" + h.envoy.edge + "/v1/models"
	if row.One, err = h.typical(ctx, models+"/m7"); err != nil {
		return row, err
	}
	took, _, err := h.timedGet(ctx, models)
	if err != nil {
		return row, err
	}
	row.List = milliseconds(took)
	return row, h.measure(ctx, &row)
}

// scaleAgents registers n agents at once.
func (o scaleOptions) scaleAgents(ctx context.Context, b *testbed, binary string, n int) (row scaleRow, err error) {
	h, err := startHoldgate(ctx, b, systemHoldgate, binary)
	if err != nil {
		return row, err
	}
	agents, err := h.dialAgents(ctx, b, n)
	if err != nil {
		return row, err
	}
	begin := time.Now()
	err = eachAgent(agents, func(a *agent) error {
		if _, err := a.join("127.0.0.1:9"); err != nil {
			return err
		}
		return a.waitWelcome(ctx)
	})
	if err != nil {
		return row, err
	}
	row.Join = milliseconds(time.Since(begin))
	if row.Rest, err = h.atRest(ctx, o.rest); err != nil {
		return row, err
	}
	return row, h.measure(ctx, &row)
}

func (h *holdgate) dialAgents(ctx context.Context, b *testbed, n int) ([]*agent, error) {
	agents := make([]*agent, n)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(openAtOnce)
	for i := range agents {
		group.Go(func() (err error) {
			// Not the group's context: it ends with the group, and would end the
			// stream.
			agents[i], err = dialAgent(context.WithoutCancel(ctx), h.agents)
			if err != nil {
				return err
			}
			agents[i].edit = func(m *agentregpb.Hello) {
				m.AgentId = fmt.Sprint("a", i)
				m.CanWake = true
				m.Group = &agentregpb.Group{Name: fmt.Sprint("g", i), Room: 1, Cost: 1}
				m.Models = nil
				for j := range scaleModels {
					m.Models = append(m.Models, fmt.Sprintf("m%d-%d", i, j))
				}
			}
			return nil
		})
	}
	err := group.Wait()
	b.stops = append(b.stops, func() error {
		return eachAgent(agents, func(a *agent) error {
			if a == nil {
				return nil
			}
			return a.leave()
		})
	})
	return agents, err
}

func eachAgent(agents []*agent, f func(*agent) error) error {
	var group errgroup.Group
	for _, a := range agents {
		group.Go(func() error { return f(a) })
	}
	return group.Wait()
}

// atRest returns the share of a core that the router uses while nothing happens.
func (h *holdgate) atRest(ctx context.Context, span time.Duration) (float64, error) {
	before, err := cpuTime(h.pid)
	if err != nil {
		return 0, err
	}
	timer := time.NewTimer(span)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	after, err := cpuTime(h.pid)
	return float64(after-before) / float64(span), err
}

// scaleHolds holds n requests, measures, and releases them.
func scaleHolds(ctx context.Context, b *testbed, binary string, n int) (row scaleRow, err error) {
	backend, h, err := startCold(ctx, b, binary, "--wake-keepalive", "1h")
	if err != nil {
		return row, err
	}
	a, err := dialAgent(ctx, h.agents)
	if err != nil {
		return row, err
	}
	waiters, err := openWaiters(ctx, h.envoy.edge, n, waiterBody)
	if err != nil {
		return row, errors.Join(err, a.leave())
	}
	err = h.waitDemand(ctx, n)
	if err == nil {
		err = h.measure(ctx, &row)
	}
	var times []time.Duration
	if err == nil {
		times, err = wake{holdgate: h, backend: backend, waiters: n}.release(ctx, a, waiters)
	}
	slices.Sort(times)
	row.Release, row.Last = milliseconds(quantile(times, 0.5)), milliseconds(quantile(times, 1))
	return row, errors.Join(err, closeWaiters(waiters), a.leave())
}

// scaleKeys starts with a keys file of n keys and sends requests with one of them. The
// agents have 1,000 models.
func scaleKeys(ctx context.Context, b *testbed, binary string, n int) (row scaleRow, err error) {
	var text bytes.Buffer
	text.WriteString("keys:\n")
	for i := range n {
		secret := benchKey
		if i > 0 {
			secret = fmt.Sprint("key-", i)
		}
		fmt.Fprintf(&text, "- {id: k%d, tenant: t%d, key_hash: %x}\n", i, i, sha256.Sum256([]byte(secret)))
	}
	file := b.path("keys.yaml")
	if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
		return row, fmt.Errorf("writing the keys: %w", err)
	}
	backend, err := b.startBackend(ctx)
	if err != nil {
		return row, err
	}
	begin := time.Now()
	h, err := startHoldgate(ctx, b, systemHoldgate, binary, "--auth-file", file)
	if err != nil {
		return row, err
	}
	row.Start = milliseconds(time.Since(begin))
	process, err := startEnvoy(ctx, b, systemHoldgate, b.path(systemHoldgate+"/extproc.sock"))
	if err != nil {
		return row, err
	}
	if err := h.manyModels(ctx, b, backend); err != nil {
		return row, err
	}
	if row.Request, err = h.served(ctx, process.EdgeAddr()); err != nil {
		return row, err
	}
	return row, h.measure(ctx, &row)
}

// manyModels registers agents with 1,000 models, the benchmark's among them.
func (h *holdgate) manyModels(ctx context.Context, b *testbed, backend string) error {
	for i := range 4 {
		a, err := dialAgent(ctx, h.agents)
		if err != nil {
			return err
		}
		b.stops = append(b.stops, a.leave)
		a.edit = func(m *agentregpb.Hello) {
			m.AgentId = fmt.Sprint("a", i)
			if i > 0 {
				m.Models = nil
			}
			for j := len(m.GetModels()); j < 250; j++ {
				m.Models = append(m.Models, fmt.Sprintf("m%d-%d", i, j))
			}
		}
		if _, err := a.join(backend); err != nil {
			return err
		}
		if err := a.waitWelcome(ctx); err != nil {
			return err
		}
	}
	return nil
}

// served returns the median time of a warm request of one client, in milliseconds.
func (h *holdgate) served(ctx context.Context, edge string) (float64, error) {
	body, err := chatBody(waiterBody)
	if err != nil {
		return 0, err
	}
	times := make([]time.Duration, 0, 200)
	for range cap(times) {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+edge+benchPath, bytes.NewReader(body))
		if err != nil {
			return 0, fmt.Errorf("asking for an answer: %w", err)
		}
		request.Header.Set("content-type", "application/json")
		request.Header.Set("authorization", "Bearer "+benchKey)
		begin := time.Now()
		if _, err := h.do(request); err != nil {
			return 0, err
		}
		times = append(times, time.Since(begin))
	}
	slices.Sort(times)
	return milliseconds(quantile(times, 0.5)), nil
}
