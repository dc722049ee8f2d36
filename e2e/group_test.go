// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// mostEngines counts how many engines run below p at the same time. The returned
// function stops counting and returns the maximum.
func mostEngines(t *testing.T, p *process) func() int {
	t.Helper()
	watching, stop := context.WithCancel(t.Context())
	var watch sync.WaitGroup
	most := 0
	watch.Go(func() {
		for watching.Err() == nil {
			most = max(most, len(children(t, p.cmd.Process.Pid, "llama_server.py")))
			time.Sleep(10 * time.Millisecond)
		}
	})
	end := func() int {
		stop()
		watch.Wait()
		return most
	}
	t.Cleanup(func() { end() })
	return end
}

const embedBody = `{"model":"smollm2-embed","input":"hello"}`

// The example has room for one engine: a request for one model puts the other to sleep
// first, and both answer.
func TestTwoModelsShareTheRoomOfOne(t *testing.T) {
	p := start(t, "up", "-f", "examples/local/models.yaml", "--listen", "127.0.0.1:0")
	url := p.waitLog(`Holdgate listens on (http://\S+);`)[1]
	s := &site{t: t, url: url, http: newHTTPClient(t)}
	most := mostEngines(t, p)
	status, body := chat(t, url)
	require.Equal(t, http.StatusOK, status, body)
	r := s.post("/v1/embeddings", embedBody)
	require.Equal(t, http.StatusOK, r.status, r.body)
	require.Contains(t, r.body, `"embedding"`)
	status, body = chat(t, url)
	require.Equal(t, http.StatusOK, status, body)
	require.Equal(t, 1, most(), "engines at the same time")

	log := p.out.String()
	for _, line := range []string{
		`waking agent=smollm2 `, `making room agent=smollm2 `, `asleep again agent=smollm2 `, `waking agent=smollm2-embed `,
		`making room agent=smollm2-embed `, `asleep again agent=smollm2-embed `, `waking agent=smollm2 `,
	} {
		_, after, found := strings.Cut(log, line)
		require.True(t, found, "%q in its place in\n%s", line, p.out)
		log = after
	}
}

// Under continuous traffic for two models, each is closed for the other in turn, and no
// request fails.
func TestModelsOfAGroupTakeTurnsUnderTraffic(t *testing.T) {
	file := filepath.Join(t.TempDir(), "models.yaml")
	text, err := os.ReadFile("../examples/local/models.yaml")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, bytes.ReplaceAll(text, []byte("min_up_time: 5s"), []byte("min_up_time: 1s")), 0o600))
	p := start(t, "up", "-f", file, "--listen", "127.0.0.1:0")
	s := &site{t: t, url: p.waitLog(`Holdgate listens on (http://\S+);`)[1], http: newHTTPClient(t)}
	most := mostEngines(t, p)
	closed := func(model string) int {
		return strings.Count(p.out.String(), "making room agent="+model+" ")
	}
	deadline := time.Now().Add(2 * time.Minute)
	over := func() bool {
		return closed("smollm2") > 1 && closed("smollm2-embed") > 1 || time.Now().After(deadline)
	}
	var traffic sync.WaitGroup
	for path, body := range map[string]string{
		chatPath:         `{"model":"smollm2","max_tokens":8,"messages":[{"role":"user","content":"hi"}]}`,
		"/v1/embeddings": embedBody,
	} {
		for range 3 {
			traffic.Go(func() {
				for !over() {
					r := s.post(path, body)
					if r.err != nil || r.status != http.StatusOK {
						t.Errorf("%s: %v %d %s", path, r.err, r.status, r.body)
					}
				}
			})
		}
	}
	traffic.Wait()
	require.Equal(t, 1, most(), "engines at the same time")
	for _, model := range []string{"smollm2", "smollm2-embed"} {
		require.GreaterOrEqual(t, closed(model), 2, model)
	}
}
