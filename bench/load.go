// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// connTimeout closes a connection without an answer. It is well above any latency of
// this benchmark.
const connTimeout = 30 * time.Second

// load is closed-loop traffic: each client sends its next request when it has read the
// answer to the last.
type load struct {
	addr     string
	request  []byte
	want     []byte
	clients  int
	warmup   time.Duration
	duration time.Duration
}

// result is the result of one run of a load.
type result struct {
	latencies []time.Duration // of the requests that began after the warm-up, sorted
	requests  int             // all, with those of the warm-up
	rate      float64         // answers a second after the warm-up
}

// run drives the load. It ends at the first answer other than the expected one: a
// benchmark of errors would be fast and worthless.
func (l load) run(ctx context.Context) (result, error) {
	group, ctx := errgroup.WithContext(ctx)
	clients := make([]client, l.clients)
	begin := time.Now()
	for i := range clients {
		group.Go(func() error { return clients[i].run(ctx, l, begin) })
	}
	if err := group.Wait(); err != nil {
		return result{}, err
	}
	var r result
	for i := range clients {
		r.latencies = append(r.latencies, clients[i].latencies...)
		r.requests += clients[i].requests
	}
	slices.Sort(r.latencies)
	r.rate = float64(len(r.latencies)) / l.duration.Seconds()
	return r, nil
}

type client struct {
	latencies []time.Duration
	requests  int
}

func (c *client) run(ctx context.Context, l load, begin time.Time) error {
	conn, err := dial(ctx, l.addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := conn.SetDeadline(begin.Add(l.warmup + l.duration + connTimeout)); err != nil {
		return fmt.Errorf("setting a deadline: %w", err)
	}
	measured := begin.Add(l.warmup)
	end := measured.Add(l.duration)
	reader := bufio.NewReader(conn)
	c.latencies = make([]time.Duration, 0, 1<<16)
	body := make([]byte, 0, len(l.want))
	for {
		sent := time.Now()
		if !sent.Before(end) {
			return ctx.Err()
		}
		body, err = exchange(conn, reader, l, body[:0])
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("asking %s: %w", l.addr, err)
		}
		c.requests++
		answered := time.Now()
		// Count only whole requests inside the window, so that rate and latencies
		// describe the same requests.
		if !sent.Before(measured) && answered.Before(end) {
			c.latencies = append(c.latencies, answered.Sub(sent))
		}
	}
}

// exchange sends the prebuilt request and checks the answer.
func exchange(conn net.Conn, reader *bufio.Reader, l load, body []byte) ([]byte, error) {
	if _, err := conn.Write(l.request); err != nil {
		return body, err
	}
	status, body, err := readAnswer(reader, body)
	if err != nil {
		return body, err
	}
	if status != 200 || !bytes.Equal(body, l.want) {
		return body, fmt.Errorf("answer %d %.200q, want 200 %q", status, body, l.want)
	}
	return body, nil
}

func dial(ctx context.Context, addr string) (net.Conn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", addr, err)
	}
	return conn, nil
}
