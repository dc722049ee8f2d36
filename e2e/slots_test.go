// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// reportingCounter is a counter that reports its requests as vLLM does.
type reportingCounter struct{ *counter }

func (c reportingCounter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/metrics" {
		c.counter.ServeHTTP(w, r)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = fmt.Fprintf(w, "vllm:num_requests_running %d\nvllm:num_requests_waiting 0\n", c.running)
}

// askUntilAnswered sends a request to a router again and again until it is answered, as a client
// that retries does. Each try counts once at most at the engine that answers it.
func (r *router) askUntilAnswered(ctx context.Context, of string) error {
	for ctx.Err() == nil {
		answer := r.do(r.request(ctx, http.MethodPost, chatPath, chatBody("m", false), "X-Of", of))
		if answer.err == nil && answer.status == http.StatusOK {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("request %s was not answered: %w", of, ctx.Err())
}

// Three routers under load send an engine of four slots four requests, never more, also while
// routers are killed and start again, and every client has its answer in the end.
// HOLDGATE_KILLS is the number of kills of the long form.
func TestThreeRoutersNeverSendAnEngineMoreThanItsSlots(t *testing.T) {
	kills := 3
	if text := os.Getenv("HOLDGATE_KILLS"); text != "" {
		var err error
		kills, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	rs := startRouters(t, 3)
	c := &counter{work: 150 * time.Millisecond, answered: map[string]int{}}
	e := newEngine(t, reportingCounter{c}.ServeHTTP)
	rs.agent("engine", e.addr(), 4, "--engine", "vllm")

	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute+time.Duration(kills)*10*time.Second)
	defer cancel()
	var stop atomic.Bool
	var asked atomic.Int64
	var clients sync.WaitGroup
	for i := range 36 {
		r := rs.all[i%3]
		clients.Go(func() {
			for !stop.Load() {
				if err := r.askUntilAnswered(ctx, fmt.Sprint(asked.Add(1))); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	pause := func(d time.Duration) { <-time.After(d) }
	pause(3 * time.Second)
	for i := range kills {
		victim := rs.all[i%3]
		victim.kill()
		pause(time.Second)
		victim.serve()
		victim.ready()
		victim.knows("engine")
		pause(3 * time.Second)
	}
	// The slots of the routers that were killed come back: while short requests of the others
	// keep the engine busy, up to 35 s later.
	rate := 0.0
	for begin := time.Now(); rate < 0.85*4/0.15 && time.Since(begin) < 45*time.Second; {
		before := c.total()
		pause(3 * time.Second)
		rate = float64(c.total()-before) / 3
	}
	stop.Store(true)
	clients.Wait()
	t.Logf("%d requests answered, at most %d at once, %.1f a second at the end", asked.Load(), c.most, rate)
	require.Equal(t, 4, c.most)
	require.Len(t, c.answered, int(asked.Load()))
	require.Greater(t, rate, 0.85*4/0.15, "all slots are in use again")
	for _, r := range rs.all {
		r.metric(`hivenet_agent_slots_in_use{agent_id="engine"}`, "0")
	}
}

// total returns the number of answers.
func (c *counter) total() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, times := range c.answered {
		n += times
	}
	return n
}

// Requests that are held at three routers meet the four slots of one agent: each is answered
// once, and the engine never has more than four. HOLDGATE_HOLDS is the number at each router of
// the long form.
func TestHeldRequestsOfThreeRoutersMeetFourSlots(t *testing.T) {
	holds := 150
	if text := os.Getenv("HOLDGATE_HOLDS"); text != "" {
		var err error
		holds, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	rs := startRouters(t, 3, "--wake-hold-max", "10000", "--wake-hold-max-total", "20000")
	c, e := newCounter(t, 10*time.Millisecond)
	var answers []<-chan result
	for i, r := range rs.all {
		for n := range holds {
			answers = append(answers, r.start(t.Context(), chatPath, chatBody("m", false), "X-Of", fmt.Sprint(i, "/", n)))
		}
	}
	for _, r := range rs.all {
		r.eventually("all are held", func() bool { return r.value(`pending_demand{model="m"}`) == holds })
	}
	begin := time.Now()
	rs.agent("engine", e.addr(), 4)
	for _, answer := range answers {
		a := <-answer
		require.NoError(t, a.err)
		require.Equal(t, http.StatusOK, a.status, a.body)
	}
	took := time.Since(begin)
	t.Logf("%d requests answered in %v, at most %d at once", len(answers), took, c.most)
	require.Equal(t, 4, c.most)
	require.Len(t, c.answered, len(answers))
	require.Equal(t, len(answers), c.total())
	for _, r := range rs.all {
		r.metric(`hivenet_agent_slots_in_use{agent_id="engine"}`, "0")
	}
}
