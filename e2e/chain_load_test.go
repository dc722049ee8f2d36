// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// chainRequests is how many requests TestChainsUnderLoad sends through each version of Envoy.
const chainRequests = 300

// chainWorkers is how many requests are sent at once to each gateway.
const chainWorkers = 32

// chainLoad sends generated requests through a chain and compares what arrives.
type chainLoad struct {
	*chain
	from    uint64
	next    atomic.Uint64
	total   uint64
	clients map[bool]*http.Client // by HTTP/2

	mu     sync.Mutex
	damage []string
	kinds  map[string]int
}

// chainSample is one generated request and its answer.
type chainSample struct {
	bodyShape

	stream, silent bool
	body, answer   string
}

// newChainSample generates the sample of a number.
func newChainSample(n uint64) *chainSample {
	r := rand.New(rand.NewPCG(n, 7))
	sizes := []int{0, 100, 4 << 10, 16 << 10, 62000, 64 << 10, 64<<10 + 1, 130 << 10, 1<<20 + 1<<19}
	size := func() int {
		if r.IntN(20) > 0 {
			return sizes[r.IntN(len(sizes)-1)]
		}
		return sizes[len(sizes)-1]
	}
	text := func(n int) string {
		line := make([]byte, 64)
		for i := range line {
			line[i] = 'a' + byte(r.IntN(26))
		}
		return strings.Repeat(string(line), n/len(line)+1)[:n]
	}
	s := &chainSample{stream: r.IntN(2) == 0, silent: r.IntN(3) == 0}
	s.http2, s.known, s.trailers = r.IntN(2) == 0, r.IntN(2) == 0, r.IntN(4) == 0
	s.trailers = s.trailers && (s.http2 || !s.known)
	s.body = fmt.Sprintf(`{"model":"m","stream":%t,"n":%d,"x":%q}`, s.stream, n, text(size()))
	s.answer = fmt.Sprintf(`{"n":%d,"x":%q}`, n, text(size()))
	if s.stream {
		s.answer = "data: " + s.answer + "\n\ndata: [DONE]\n\n"
	}
	return s
}

// respond is the engine: it compares the body and answers.
func (l *chainLoad) respond(q *exactRequest) string {
	n, _ := strconv.ParseUint(q.header.Get("X-Sample"), 10, 64)
	s := newChainSample(n)
	if q.body != s.body {
		l.damaged("%d %+v: the engine got %d bytes for %d", n, s.bodyShape, len(q.body), len(s.body))
	}
	kind := "application/json"
	if s.stream {
		kind = "text/event-stream"
	}
	head := "HTTP/1.1 200 OK\r\ncontent-type: " + kind + "\r\n"
	if !s.stream {
		return head + "content-length: " + strconv.Itoa(len(s.answer)) + "\r\n\r\n" + s.answer
	}
	half := len(s.answer) / 2
	return fmt.Sprintf("%stransfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n", head, half, s.answer[:half], len(s.answer)-half, s.answer[half:])
}

func (l *chainLoad) damaged(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.damage = append(l.damage, fmt.Sprintf(format, args...))
}

// send sends the sample of a number and compares its answer.
func (l *chainLoad) send(n uint64) {
	s := newChainSample(n)
	ctx, cancel := context.WithTimeout(l.t.Context(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, l.url+chatPath, http.NoBody)
	if err != nil {
		l.damaged("%d: %v", n, err)
		return
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Sample", strconv.FormatUint(n, 10))
	if s.silent {
		r.Header.Set("X-Wake-Keepalive", "off")
	}
	s.shape(r, s.body)
	resp, err := l.clients[s.http2].Do(r)
	if err != nil {
		l.damaged("%d %+v: %v", n, s.bodyShape, err)
		return
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	got := strings.TrimLeft(strings.ReplaceAll(string(text), ": keep-alive\n", ""), " ")
	if err != nil || resp.StatusCode != http.StatusOK || got != s.answer {
		l.damaged("%d %+v: status %d, %v, %d bytes for %d: %.200s", n, s.bodyShape, resp.StatusCode, err, len(got), len(s.answer), text)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case len(got) < len(text):
		l.kinds["held with keepalives"]++
	case resp.Header.Get("Server-Timing") != "":
		l.kinds["held silently, or queued"]++
	default:
		l.kinds["warm"]++
	}
	if s.trailers {
		l.kinds["with trailers"]++
	}
}

// run sends all samples, while an agent comes and goes.
func (l *chainLoad) run(e *exactEngine) {
	var workers sync.WaitGroup
	done := make(chan struct{})
	for range chainWorkers {
		workers.Go(func() {
			for i := l.next.Add(1); i <= l.total; i = l.next.Add(1) {
				l.send(l.from + i)
			}
		})
	}
	go func() {
		workers.Wait()
		close(done)
	}()
	told := time.Now()
	for asleep := true; ; asleep = !asleep {
		var a *agent
		if !asleep {
			a = l.register(hello("a", e.addr, 12, "m"))
		}
		select {
		case <-done:
			if a == nil {
				return
			}
		case <-time.After(400 * time.Millisecond):
		}
		if a != nil {
			a.leave()
		}
		if requests, faults := e.taken(); len(faults) > 0 {
			l.damaged("%d requests: %v", len(requests), faults)
		}
		if time.Since(told) > 10*time.Second {
			told = time.Now()
			l.t.Logf("%d of %d", min(l.next.Load(), l.total), l.total)
		}
	}
}

// Under load, while the model comes and goes, no request is lost and no byte is changed.
// HOLDGATE_CHAIN is the number of requests for the Envoy of HOLDGATE_ENVOY; `make chain` sends
// many through each version.
func TestChainsUnderLoad(t *testing.T) {
	total, from := uint64(chainRequests), uint64(1)
	versions := []string{"", "1.37.0"}
	if text := os.Getenv("HOLDGATE_CHAIN"); text != "" {
		n, err := strconv.ParseUint(text, 10, 32)
		require.NoError(t, err, "HOLDGATE_CHAIN")
		total, from, versions = n, rand.Uint64()>>1, versions[:1]
		t.Logf("samples from %d on", from)
	}
	for _, version := range versions {
		t.Run("Envoy "+version, func(t *testing.T) {
			if version != "" {
				path := filepath.Join(os.Getenv("HOLDGATE_TOOLS"), "envoys", version, "envoy", "_bin", "envoy")
				require.FileExists(t, path, "run `tools/envoy.sh %s`", version)
				t.Setenv("HOLDGATE_ENVOY", path)
			}
			each := total / uint64(len(gateways))
			for i, gateway := range gateways {
				t.Run(gateway, func(t *testing.T) {
					t.Parallel()
					l := &chainLoad{from: from + uint64(i)*each, total: each, kinds: map[string]int{}}
					l.clients = map[bool]*http.Client{false: newHTTPClient(t), true: newHTTP2Client(t)}
					e := newExactEngine(t, l.respond)
					l.chain = startChain(t, gateway, e.addr, "--wake-keepalive", "100ms", "--queue-depth", "1000", "--drain-timeout", "1s")
					l.run(e)
					t.Logf("%d requests, %d damaged or lost, %v; the picker: %+v", each, len(l.damage), l.kinds, l.picker.Counts())
					require.Empty(t, l.damage)
					l.atRest()
				})
			}
		})
	}
}
