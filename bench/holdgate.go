// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json/v2"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// benchMap places the model at this site and lets it sleep.
const benchMap = `{"generation":1,"sites":[],"placements":[` +
	`{"model":"` + benchModel + `","kind":"chat","site":"bench","scale_from_zero":true,"hold_budget":"10m"}]}`

// holdgate is a process of the real binary, with its map.
type holdgate struct {
	pid    int
	admin  string
	agents string
	keda   string // empty without --keda-listen
	client *http.Client
	envoy  envoyInFront
}

// envoyInFront is the Envoy in front of Holdgate.
type envoyInFront struct {
	pid         int
	edge, admin string
}

// startHoldgate runs "holdgate serve" under a name; more are arguments for benchmarks
// that need other limits than the defaults. Its sockets are in a directory of that
// name.
func startHoldgate(ctx context.Context, b *testbed, name, binary string, more ...string) (*holdgate, error) {
	if _, err := os.Stat(binary); err != nil {
		return nil, fmt.Errorf("finding holdgate (build it with make build, or name it by -holdgate): %w", err)
	}
	if err := os.MkdirAll(b.path(name), 0o700); err != nil {
		return nil, fmt.Errorf("making the directory of %s: %w", name, err)
	}
	file := b.path(name + ".ports.json")
	process, err := b.start(name, binary, append([]string{
		"serve", "--site-id", "bench",
		"--extproc-listen", "unix://" + b.path(name+"/extproc.sock"),
		"--agents-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0",
		"--relay", "unix://" + b.path(name+"/relay.sock"), "--ports-file", file,
	}, more...)...)
	if err != nil {
		return nil, err
	}
	if err := waitFile(ctx, process, file); err != nil {
		return nil, err
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading the ports of holdgate: %w", err)
	}
	var ports struct {
		Admin  string `json:"admin"`
		Agents string `json:"agents"`
		KEDA   string `json:"keda"`
	}
	if err := json.Unmarshal(content, &ports); err != nil {
		return nil, fmt.Errorf("reading the ports of holdgate: %w", err)
	}
	h := &holdgate{pid: process.Pid(), admin: ports.Admin, agents: ports.Agents, keda: ports.KEDA, client: &http.Client{Timeout: 10 * time.Second}}
	return h, h.putMap(ctx, benchMap)
}

func (h *holdgate) putMap(ctx context.Context, text string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://"+h.admin+"/v1/sitemap", strings.NewReader(text))
	if err != nil {
		return fmt.Errorf("pushing the map: %w", err)
	}
	request.Header.Set("content-type", "application/json")
	_, err = h.do(request)
	return err
}

func (h *holdgate) do(request *http.Request) ([]byte, error) {
	response, err := h.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", request.URL, err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s %s: %s: %.500s", request.Method, request.URL, response.Status, body)
	}
	return body, nil
}

// metric returns one value of the metrics page, by its whole series name; found is
// false when the page has no such series.
func (h *holdgate) metric(ctx context.Context, series string) (value float64, found bool, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+h.admin+"/metrics", http.NoBody)
	if err != nil {
		return 0, false, fmt.Errorf("reading metrics: %w", err)
	}
	page, err := h.do(request)
	if err != nil {
		return 0, false, err
	}
	scanner := bufio.NewScanner(bytes.NewReader(page))
	for scanner.Scan() {
		rest, is := strings.CutPrefix(scanner.Text(), series+" ")
		if !is {
			continue
		}
		value, err := strconv.ParseFloat(rest, 64)
		if err != nil {
			return 0, false, fmt.Errorf("reading metric %s: %w", series, err)
		}
		return value, true, nil
	}
	return 0, false, nil
}

// waitDemand returns when exactly n requests are held.
func (h *holdgate) waitDemand(ctx context.Context, n int) error {
	return h.waitMetric(ctx, `hivenet_pending_demand{model="`+benchModel+`"}`, n)
}

// waitMetric returns when the series has the value n.
func (h *holdgate) waitMetric(ctx context.Context, series string, n int) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		value, found, err := h.metric(ctx, series)
		if err != nil {
			return err
		}
		if found && int(value) == n {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s is %d, it is %v: %w", series, n, value, ctx.Err())
		}
	}
}
