// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// standalone is a separate holdgate serve process behind an Envoy.
type standalone struct {
	*site
	*process
	admin string
	dir   string
	flags []string
}

func startStandalone(t *testing.T, flags ...string) *standalone {
	t.Helper()
	dir, err := os.MkdirTemp("", "hg")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	mapFile, ports := filepath.Join(dir, "map.json"), filepath.Join(dir, "ports.json")
	require.NoError(t, os.WriteFile(mapFile, []byte(testMap), 0o600))
	flags = append([]string{
		"serve", "--site-id", "here", "--extproc-listen", "unix://" + dir + "/extproc.sock", "--relay", "unix://" + dir + "/relay.sock",
		"--agents-listen", "unix://" + dir + "/agents.sock", "--admin-listen", "127.0.0.1:0", "--map-file", mapFile, "--ports-file", ports,
	}, flags...)
	p := start(t, flags...)
	p.waitLog("holdgate is ready")
	text, err := os.ReadFile(ports)
	require.NoError(t, err)
	var at map[string]string
	require.NoError(t, json.Unmarshal(text, &at))
	e := startEnvoy(t, dir, io.Discard)
	return &standalone{site: &site{t: t, url: "http://" + e.EdgeAddr(), envoy: e, http: newHTTPClient(t)}, process: p, admin: at["admin"], dir: dir, flags: flags}
}

// series returns the metrics by name and labels.
func (s *standalone) series() map[string]float64 {
	t := s.site.t
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.admin+"/metrics", http.NoBody)
	require.NoError(t, err)
	answer := s.do(r)
	require.NoError(t, answer.err)
	all := map[string]float64{}
	for line := range strings.Lines(answer.body) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		var v float64
		if _, err := fmt.Sscan(value, &v); err == nil {
			all[name] = v
		}
	}
	return all
}

const (
	heap    = "go_memstats_heap_inuse_bytes"
	pending = `hivenet_pending_demand{model="m"}`
)

// Requests that give up leave nothing in memory. 200 a second for 15 s, each with 64
// KiB and a timeout of a second, would otherwise be 190 MiB.
func TestRequestsThatGiveUpLeaveTheHeapFlat(t *testing.T) {
	t.Setenv("GOGC", "25") // keep the heap close to the live data
	s := startStandalone(t, "--wake-hold-max", "1000")
	s.http.Transport.(*http.Transport).MaxIdleConnsPerHost = 1000
	body := bigBody("m", 64<<10)
	load := func(span time.Duration) (asked int, most float64) {
		var clients sync.WaitGroup
		defer clients.Wait()
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		for begin := time.Now(); time.Since(begin) < span; asked++ {
			<-ticker.C
			if asked%200 == 199 {
				most = max(most, s.series()[heap])
			}
			clients.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if s.do(s.request(ctx, http.MethodPost, chatPath, body)).err == nil {
					t.Error("a request was answered")
				}
			})
		}
		return asked, most
	}
	rest := func() float64 {
		var now map[string]float64
		s.eventually("all have left", func() bool {
			now = s.series()
			return now[pending] == 0
		})
		return now[heap]
	}
	load(2 * time.Second) // pools and buffers reach their size
	before := rest()
	asked, most := load(15 * time.Second)
	t.Logf("%d requests; heap in use: %.1f MiB before, %.1f at most", asked, before/(1<<20), most/(1<<20))
	require.Greater(t, asked, 1000, "too little to tell")
	require.Less(t, most, before+96<<20, "while they come and go")
	rest()
	s.eventually("the heap is as before", func() bool { return s.series()[heap] < before+16<<20 })

	now := s.series()
	require.InDelta(t, now[`hivenet_wake_holds_total{outcome="disconnected"}`], now["hivenet_wake_hold_seconds_count"], 0)
	require.GreaterOrEqual(t, now[`hivenet_wake_holds_total{outcome="disconnected"}`], float64(asked))
	require.Zero(t, now[`hivenet_wake_holds_total{outcome="full"}`])
	require.InDelta(t, 1, now[`hivenet_wake_wanted{model="m"}`], 0, "the model is still wanted")
	s.eventually("no goroutine is left behind", func() bool { return s.series()["go_goroutines"] < 200 })
}

// Clients of a router that is killed see an error that they retry: the real status if
// nothing was sent, otherwise a cut.
func TestClientsOfAKilledRouterSeeAFailure(t *testing.T) {
	s := startStandalone(t, "--wake-keepalive", "400ms")
	early := s.start(t.Context(), chatPath, chatBody("m", false), "X-Wake-Keepalive", "off")
	committed := s.send(chatPath, chatBody("m", true))
	s.eventually("both are held", func() bool { return s.series()[pending] == 2 })
	time.Sleep(600 * time.Millisecond) // a keepalive
	require.NoError(t, s.cmd.Process.Kill())
	r := <-early
	require.NoError(t, r.err)
	require.Equal(t, http.StatusServiceUnavailable, r.status)
	require.Contains(t, r.body, `"code":"router_unavailable"`)
	require.Equal(t, "5", r.header.Get("Retry-After"))
	w := <-committed
	require.Equal(t, "HTTP/1.1 200 OK", w.status)
	require.NotEmpty(t, w.body)
	require.Empty(t, strings.ReplaceAll(w.body, comment, ""))
	require.False(t, w.whole, "it must not look like an answer")
	require.Error(t, s.ends())
}

// SIGTERM ends holds with an answer, never with a cut: at once with the real status if nothing
// was sent, otherwise with a late error at the end of the drain timeout.
func TestATerminatedRouterAnswersItsHolds(t *testing.T) {
	const holds = 400
	const draining = `{"error":{"code":"draining","message":"this router is shutting down; retry in 1 second","source":"router","retry_after":1}}`
	audit := filepath.Join(t.TempDir(), "audit.log")
	s := startStandalone(t, "--wake-keepalive", "400ms", "--wake-hold-max", "1000", "--drain-timeout", "2s", "--audit-file", audit)
	var early []<-chan result
	var committed []<-chan *wire
	for range holds {
		early = append(early, s.start(t.Context(), chatPath, chatBody("m", false), "X-Wake-Keepalive", "off"))
		committed = append(committed, s.send(chatPath, chatBody("m", true)))
	}
	s.eventually("all are held", func() bool { return s.series()[pending] == 2*holds })
	time.Sleep(600 * time.Millisecond) // a keepalive
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGTERM))
	for _, a := range early {
		r := <-a
		require.NoError(t, r.err)
		require.Equal(t, http.StatusServiceUnavailable, r.status)
		require.Equal(t, "1", r.header.Get("Retry-After"))
		require.Equal(t, draining, r.body)
	}
	require.InDelta(t, holds, s.series()[pending], 0, "the others wait on, and are seen to")
	for _, a := range committed {
		w := <-a
		require.Equal(t, "HTTP/1.1 200 OK", w.status)
		require.True(t, w.whole)
		require.Equal(t, "data: "+draining+"\n\n", strings.ReplaceAll(w.body, comment, ""))
	}
	require.NoError(t, s.ends())
	text, err := os.ReadFile(audit)
	require.NoError(t, err)
	wire := map[float64]int{}
	for line := range strings.Lines(string(text)) {
		var rec map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &rec), line)
		require.Equal(t, "draining", rec["outcome"], line)
		require.EqualValues(t, http.StatusServiceUnavailable, rec["status"], line)
		require.Greater(t, rec["held_ms"], 500.0, line)
		status, _ := rec["wire_status"].(float64)
		wire[status]++
	}
	require.Equal(t, map[float64]int{http.StatusServiceUnavailable: holds, http.StatusOK: holds}, wire, "one line for each")
}
