// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/certs/certstest"
)

const failuresMap = `{"placements": [
	{"model": "m", "kind": "chat", "site": "here", "scale_from_zero": true, "hold_budget": "60s"},
	{"model": "cold", "kind": "chat", "site": "here", "scale_from_zero": true, "hold_budget": "60s"}]}`

// fails is an engine that has one model. A request with X-Wait ends only when finish is closed.
func fails(begun chan<- struct{}, finish <-chan struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := r.Context().Value(requestBody{}).(string)
		if strings.Contains(body, `"cold"`) {
			http.Error(w, "no such model", http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "a part")
		if r.Header.Get("X-Wait") != "" {
			_ = http.NewResponseController(w).Flush()
			begun <- struct{}{}
			<-finish
			_, _ = io.WriteString(w, " and the rest")
		}
	}
}

// outcome is what a client got, and when: times are since the failure began.
type outcome struct {
	what        string
	asked, came time.Duration
}

func (o outcome) String() string {
	return fmt.Sprintf("%s after %.1f s", o.what, (o.came - o.asked).Seconds())
}

// trial is one failure that clients see.
type trial struct {
	*distant
	begin time.Time
	wg    sync.WaitGroup

	mu   sync.Mutex
	warm []outcome
}

// send sends a request and returns what came.
func (c *trial) send(ctx context.Context, model string, headers ...string) outcome {
	asked := time.Since(c.begin)
	r := c.do(c.request(ctx, http.MethodPost, chatPath, chatBody(model, false), headers...))
	return outcome{describe(r), asked, time.Since(c.begin)}
}

// describe says what an answer is.
func describe(r result) string {
	body := strings.Join(strings.Fields(r.body), " ")
	what := fmt.Sprint(r.status)
	for _, code := range []string{"router_unavailable", "model_waking", "draining", "no such model"} {
		if strings.Contains(body, code) {
			what += " " + code
		}
	}
	switch {
	case r.status == 0:
		return "no answer (" + r.err.Error()[max(0, len(r.err.Error())-40):] + ")"
	case r.err != nil:
		return what + " cut"
	}
	return what
}

// probe sends a warm request each quarter of a second until ctx ends.
func (c *trial) probe(ctx context.Context) {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		c.wg.Go(func() {
			limited, cancel := context.WithTimeout(c.t.Context(), 40*time.Second)
			defer cancel()
			o := c.send(limited, "m")
			c.mu.Lock()
			defer c.mu.Unlock()
			c.warm = append(c.warm, o)
		})
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// summary returns what warm requests got, by the time at which they were sent.
func (c *trial) summary() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	by := map[int]outcome{}
	for _, o := range c.warm {
		by[int(o.asked/(250*time.Millisecond))] = o
	}
	var text bytes.Buffer
	last := ""
	for i := range 400 {
		o, ok := by[i]
		if !ok {
			continue
		}
		kind := o.what
		if took := o.came - o.asked; took > 300*time.Millisecond {
			kind += " late"
		}
		if kind != last {
			fmt.Fprintf(&text, " | sent at %.1f s: %s", o.asked.Seconds(), o)
			last = kind
		}
	}
	return text.String()
}

// TestNetworkFailureTable prints what clients get when a router fails, for the table of
// docs/gateways/network.md. It takes minutes, and runs with HOLDGATE_FAILURES=1.
func TestNetworkFailureTable(t *testing.T) {
	if os.Getenv("HOLDGATE_FAILURES") == "" {
		t.Skip("make failures runs this")
	}
	closed := func(text string) string {
		return strings.Replace(text, "failure_mode_allow: true", "failure_mode_allow: false", 1)
	}
	for name, o := range map[string]distantOptions{
		"route, open": {}, "route, closed": {change: closed}, "replica": {own: true},
	} {
		for _, failure := range []string{"killed", "hanging", "black hole", "drained", "expired"} {
			t.Run(name+", "+failure, func(t *testing.T) {
				t.Parallel()
				begun, finish := make(chan struct{}, 1), make(chan struct{})
				o.handler = fails(begun, finish)
				o.flags = []string{"--drain-timeout", "8s"}
				d := startDistant(t, o)
				require.Equal(t, http.StatusOK, d.putMap(failuresMap).status)
				d.wakeUp()
				if !o.own {
					d.healthy()
				}
				require.Equal(t, http.StatusOK, d.post(chatPath, chatBody("m", false)).status)
				c := &trial{distant: d, begin: time.Now()}
				var running, held, silent, cold outcome
				c.wg.Go(func() { running = c.send(t.Context(), "m", "X-Wait", "1") })
				<-begun
				c.wg.Go(func() { held = c.send(t.Context(), "cold") })
				c.wg.Go(func() { silent = c.send(t.Context(), "cold", "X-Wake-Keepalive", "off") })
				d.metric(`hivenet_pending_demand{model="cold"}`, "2")
				time.Sleep(someKeepalives)
				c.begin = time.Now()
				d.fail(failure)
				probing, stop := context.WithTimeout(t.Context(), 30*time.Second)
				defer stop()
				c.wg.Go(func() { c.probe(probing) })
				time.AfterFunc(8*time.Second, func() { close(finish) })
				time.Sleep(7 * time.Second)
				c.wg.Go(func() { cold = c.send(t.Context(), "cold") })
				<-probing.Done()
				repaired := time.Since(c.begin)
				d.repair(failure)
				again := time.Duration(0)
				for again == 0 {
					limited, cancel := context.WithTimeout(t.Context(), time.Second)
					if r := c.send(limited, "cold", "X-Wake-Timeout", "100ms"); strings.Contains(r.what, "model_waking") {
						again = r.came - repaired
					}
					cancel()
				}
				c.wg.Wait()
				t.Logf("TABLE %s: running %s; held with keepalives %s at %.1f s; held silently %s at %.1f s; cold at 7 s: %s; again %.1f s after the repair; warm%s",
					t.Name(), running.what, held.what, held.came.Seconds(), silent.what, silent.came.Seconds(), cold, again.Seconds(), c.summary())
			})
		}
	}
}

// fail has the router fail.
func (d *distant) fail(how string) {
	d.t.Helper()
	switch how {
	case "killed":
		require.NoError(d.t, d.serve.cmd.Process.Kill())
		require.Error(d.t, d.serve.ends())
	case "hanging":
		require.NoError(d.t, d.serve.cmd.Process.Signal(syscall.SIGSTOP))
	case "black hole":
		d.net.lose(true)
	case "drained":
		require.NoError(d.t, d.serve.cmd.Process.Signal(syscall.SIGTERM))
	case "expired":
		d.replace(d.routers, "router", routerNames, certstest.Expired)
		d.serve.waitLog("new version applied")
		d.net.cut()
	}
}

// repair ends the failure.
func (d *distant) repair(how string) {
	d.t.Helper()
	switch how {
	case "killed", "drained":
		d.startRouter()
		require.Equal(d.t, http.StatusOK, d.putMap(failuresMap).status)
	case "hanging":
		require.NoError(d.t, d.serve.cmd.Process.Signal(syscall.SIGCONT))
	case "black hole":
		d.net.lose(false)
	case "expired":
		d.replace(d.routers, "router", routerNames)
	}
}
