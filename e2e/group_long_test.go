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
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The longest times of the engines of group_engine.py, and additional times of
// processes.
const (
	longTurn = 2*time.Second + 2*time.Second + time.Second + 500*time.Millisecond + time.Second
	longWait = 5 * longTurn // the turns of the others, one in progress, and its own
)

// longRun sends random requests for four models with room for one.
type longRun struct {
	t      *testing.T
	url    string
	http   *http.Client
	mu     sync.Mutex
	ends   map[string]int // requests by their result
	served []string       // the ids of served requests
	faults []string
}

func (l *longRun) send(id, model string, patience time.Duration) {
	ctx, cancel := context.WithTimeout(l.t.Context(), patience)
	defer cancel()
	body := fmt.Sprintf(`{"model":%q,"id":%q,"messages":[{"role":"user","content":"hi"}]}`, model, id)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, l.url+chatPath, strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	begin := time.Now()
	text, status := "", 0
	resp, err := l.http.Do(r)
	if err == nil {
		var b []byte
		status = resp.StatusCode
		b, err = io.ReadAll(resp.Body)
		text = string(b)
		_ = resp.Body.Close()
	}
	took := time.Since(begin)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		l.ends["left"]++
	case err != nil:
		l.faults = append(l.faults, fmt.Sprintf("%s for %s: %v", id, model, err))
	case status == http.StatusOK && text == model:
		l.ends["served"]++
		l.served = append(l.served, id)
	case status == http.StatusServiceUnavailable && strings.Contains(text, "could not be woken"):
		l.ends["failed"]++
	default:
		l.faults = append(l.faults, fmt.Sprintf("%s for %s: %d %s", id, model, status, text))
	}
	if took > longWait {
		l.faults = append(l.faults, fmt.Sprintf("%s for %s took %v", id, model, took))
	}
}

// TestAGroupForMinutes sends, for GROUPS_TIME, random requests for four models of which
// one can be awake, with clients that give up, engines that do not start and wakes
// ahead of traffic. No two engines are awake at once, each request is served once, and
// none waits longer than the turns of the others take.
func TestAGroupForMinutes(t *testing.T) {
	span, err := time.ParseDuration(os.Getenv("GROUPS_TIME"))
	if err != nil {
		t.Skip("make groups runs this")
	}
	dir := t.TempDir()
	script, err := filepath.Abs("group_engine.py")
	require.NoError(t, err)
	file := "listen: 127.0.0.1:0\nserve: {wake-hold-max: 1000, wake-hold-max-total: 10000, wake-cooldown: 1s}\nmodels:\n"
	models := []string{"a", "b", "c", "d"}
	for _, m := range models {
		file += fmt.Sprintf("- {name: %s, exec: \"{python} %s %s {port} %s\", slots: 100, min_up_time: 2s, idle_timeout: 20s, group: gpu0}\n", m, script, m, dir)
	}
	path := filepath.Join(dir, "models.yaml")
	require.NoError(t, os.WriteFile(path, []byte(file), 0o600))
	p := start(t, "up", path)
	l := &longRun{t: t, url: p.waitLog(`Holdgate listens on (http://\S+);`)[1], http: newHTTPClient(t), ends: map[string]int{}}
	admin := p.waitLog(`metrics on (http://\S+)/metrics;`)[1]
	var requests sync.WaitGroup
	for begin, n := time.Now(), 0; time.Since(begin) < span; n++ {
		time.Sleep(rand.N(600 * time.Millisecond))
		model := models[min(rand.IntN(2*len(models)), len(models)-1)] // the last model gets most of the traffic
		switch kind := rand.IntN(40); {
		case kind == 0:
			time.Sleep(rand.N(25 * time.Second)) // no requests
		case kind < 3:
			out, err := exec.CommandContext(t.Context(), p.cmd.Path, "wake", model, "--for", "20s", "--admin", admin).CombinedOutput()
			require.NoError(t, err, string(out))
		default:
			patience := time.Hour
			if kind < 12 {
				patience = rand.N(5 * time.Second)
			}
			requests.Go(func() { l.send(fmt.Sprint("r", n), model, patience) })
		}
	}
	requests.Wait()

	text, _ := os.ReadFile(filepath.Join(dir, "faults"))
	require.Empty(t, string(text))
	require.Empty(t, l.faults)
	text, err = os.ReadFile(filepath.Join(dir, "answered"))
	require.NoError(t, err)
	times := map[string]int{}
	for id := range strings.FieldsSeq(string(text)) {
		times[id]++
		require.Equal(t, 1, times[id], "%s was in an engine twice", id)
	}
	for _, id := range l.served {
		require.Equal(t, 1, times[id], id)
	}
	text, err = os.ReadFile(filepath.Join(dir, "starts"))
	require.NoError(t, err)
	t.Logf("requests: %v, starts of engines: %d", l.ends, len(strings.Fields(string(text))))
	for _, end := range []string{"served", "left", "failed"} {
		require.NotZero(t, l.ends[end], end)
	}
}
