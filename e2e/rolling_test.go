// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/envoy"
)

// frontOf starts an Envoy as a load balancer before the edges of several Envoys.
func frontOf(t *testing.T, routers ...*standalone) *site {
	t.Helper()
	var edges []string
	for _, r := range routers {
		edges = append(edges, r.envoy.EdgeAddr())
	}
	return startFront(t, edges...)
}

// startFront starts an Envoy as a load balancer before edges, each an ip:port. It sends a request
// to another one if a router refuses it.
func startFront(t *testing.T, edges ...string) *site {
	t.Helper()
	var hosts []string
	for _, edge := range edges {
		ip, port, _ := strings.Cut(edge, ":")
		hosts = append(hosts, fmt.Sprintf("{endpoint: {address: {socket_address: {address: %s, port_value: %s}}}}", ip, port))
	}
	dir, err := os.MkdirTemp("", "hg")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	bin, err := envoy.Find(t.Context())
	require.NoError(t, err)
	p, err := bin.Start(context.Background(), envoy.Options{Bootstrap: fmt.Appendf(nil, frontConfig, strings.Join(hosts, ", ")), Dir: dir, Concurrency: 1, Log: io.Discard})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Stop(5*time.Second)) })
	s := &site{t: t, url: "http://" + p.EdgeAddr(), envoy: p, http: newHTTPClient(t)}
	s.http.Transport.(*http.Transport).MaxIdleConnsPerHost = 1000
	return s
}

const frontConfig = `
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}
static_resources:
  listeners:
  - name: edge
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: front
          route_config:
            virtual_hosts:
            - name: routers
              domains: ["*"]
              routes:
              - match: {prefix: /}
                route:
                  cluster: routers
                  timeout: 0s
                  retry_policy:
                    retry_on: "connect-failure,refused-stream,reset-before-request,retriable-headers"
                    retriable_headers: [{name: retry-after, string_match: {safe_regex: {regex: "1|2|5"}}}]
                    num_retries: 3
                    retry_back_off: {base_interval: 0.01s, max_interval: 0.05s}
                    retry_host_predicate: [{name: envoy.retry_host_predicates.previous_hosts, typed_config: {"@type": type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate}}]
                    host_selection_retry_max_attempts: 3
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
  clusters:
  - name: routers
    type: STATIC
    lb_policy: ROUND_ROBIN
    circuit_breakers: {thresholds: [{max_connections: 10000, max_pending_requests: 10000, max_requests: 10000, max_retries: 10000}]}
    health_checks: [{timeout: 1s, interval: 0.2s, no_traffic_interval: 0.2s, unhealthy_threshold: 1, healthy_threshold: 1, http_health_check: {path: /readyz}}]
    load_assignment: {cluster_name: routers, endpoints: [{lb_endpoints: [%s]}]}
`

// load sends requests of a model until stop is called, which returns how many were sent and
// what was wrong with those that failed.
func (s *site) load(perSecond int, model string) (stop func() (sent int, failures []string)) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	var mu sync.Mutex
	var failures []string
	sent := 0
	all.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(perSecond))
		defer tick.Stop()
		for ; ctx.Err() == nil; sent++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			all.Go(func() {
				r := s.do(s.request(context.Background(), http.MethodPost, chatPath, chatBody(model, false)))
				if r.err != nil || r.status != http.StatusOK {
					mu.Lock()
					failures = append(failures, fmt.Sprintf("%d %s %v", r.status, r.body, r.err))
					mu.Unlock()
				}
			})
		}
	})
	return func() (int, []string) {
		cancel()
		all.Wait()
		return sent, failures
	}
}

// startAgent starts an agent of an engine at each of the routers.
func startAgent(t *testing.T, e *engine, model string, slots int, routers ...string) *process {
	t.Helper()
	args := []string{"agent", "--engine", "custom", "--backend-url", "http://" + e.addr(), "--model", model, "--capability", "llm", "--capacity", fmt.Sprint(slots)}
	for _, r := range routers {
		args = append(args, "--router", r)
	}
	return start(t, args...)
}

// A router of two that is ended by SIGTERM costs no request: holds that were sent nothing go on
// at the other one, holds with keepalives are served by the router that ends, and so is what it
// still gets.
func TestARollingRestartLosesNothing(t *testing.T) {
	const silent, begun = 10, 5
	flags := []string{"--wake-keepalive", "300ms", "--wake-hold-max", "1000", "--request-timeout", "20s"}
	var routers []*standalone
	var sockets []string
	for range 2 {
		r := startStandalone(t, flags...)
		routers, sockets = append(routers, r), append(sockets, "unix://"+r.dir+"/agents.sock")
	}
	warm := newEngine(t, nil)
	startAgent(t, warm, "fixed", 64, sockets...)
	for _, r := range routers {
		r.waitLog("agent registered")
	}
	first := routers[0]
	front := frontOf(t, routers...)
	stopLoad := front.load(100, "fixed")
	var early []<-chan result
	for range silent {
		early = append(early, front.start(t.Context(), chatPath, chatBody("m", false), "X-Wake-Keepalive", "off"))
	}
	var streams []<-chan *wire
	for range begun {
		streams = append(streams, first.send(chatPath, chatBody("m", true)))
	}
	held := func() (n float64) { return first.series()[pending] + routers[1].series()[pending] }
	first.eventually("all are held", func() bool { return held() == silent+begun })
	time.Sleep(500 * time.Millisecond) // a keepalive
	require.NoError(t, first.cmd.Process.Signal(syscall.SIGTERM))
	first.eventually("silent holds wait at the other router", func() bool { return routers[1].series()[pending] == silent })
	require.InDelta(t, begun, first.series()[pending], 0, "its own demand is told until the end")
	var served atomic.Int64
	e := newEngine(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			served.Add(1)
		}
		_, _ = io.WriteString(w, "data: answer\n\n")
	})
	startAgent(t, e, "m", 4, sockets...)
	for _, a := range early {
		r := <-a
		require.NoError(t, r.err)
		require.Equal(t, http.StatusOK, r.status, r.body)
	}
	for _, a := range streams {
		w := <-a
		require.True(t, w.whole)
		require.Equal(t, "data: answer\n\n", strings.ReplaceAll(w.body, comment, ""))
	}
	require.NoError(t, first.ends(), "it ends when nothing waits any more")
	time.Sleep(500 * time.Millisecond) // some load without it
	sent, failures := stopLoad()
	require.Greater(t, sent, 50)
	require.Empty(t, failures, "of %d", sent)
	require.EqualValues(t, silent+begun, served.Load(), "each was sent to the engine once")
	routers[1].eventually("nothing is left", func() bool { return routers[1].series()[pending] == 0 })
}
