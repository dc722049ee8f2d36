// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/admin"
	"github.com/holdgate/holdgate/internal/target"
	"github.com/holdgate/holdgate/internal/wake"
)

// A hook is called while its model is wanted and nothing of it is up, also when a
// replica was lost while nobody waited.
func TestAHookIsCalledAgainWhenAReplicaIsLostWhileWanted(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		calls := func() int { return int(r.gauge("hivenet_webhook_calls_total", "unreachable")) }
		_, err := r.maps.Push([]byte(`{"placements":[{"model":"m","kind":"chat","site":"here","scale_from_zero":true,
			"wake":{"url":"http://127.0.0.1:1/wake"}}]}`), false)
		require.NoError(r.t, err)
		require.NoError(r.t, r.wakeModel("m", time.Hour))
		pass(time.Minute)
		require.Positive(r.t, calls())

		p := r.join(pb.State_STATE_SERVING, "m")
		before := calls()
		pass(5 * time.Minute)
		require.Equal(r.t, before, calls(), "a replica is up")
		p.leave()
		pass(time.Minute)
		require.Greater(r.t, calls(), before)
		synctest.Wait()
	})
}

// called is a transport that records the calls of webhooks.
type called struct {
	mu   sync.Mutex
	urls []string
}

func (c *called) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.urls = append(c.urls, r.URL.Path+" "+regexp.MustCompile(`"kind":"[a-z]+"`).FindString(string(body)))
	return &http.Response{StatusCode: http.StatusAccepted, Body: http.NoBody}, err
}

// since returns the calls since it was last called.
func (c *called) since() []string {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	urls := c.urls
	c.urls = nil
	slices.Sort(urls)
	return urls
}

// Each placement has its hook, and a hook that placements share is called once. It is called
// for a kind that requests wait for although a replica of another kind is up.
func TestEachKindHasItsHook(t *testing.T) {
	t.Parallel()
	hooked := func(f func(r *rig, calls *called), chat, rerank string) {
		bubble(t, func(r *rig) {
			calls := &called{}
			r.notifiers.webhooks = wake.NewWebhooks(wake.WebhookOptions{
				Transport: calls, Registerer: prometheus.NewRegistry(), Log: zerolog.Nop(),
				Demand: r.machine.Demand, OnFailed: func(_, reason string) { require.Fail(r.t, reason) },
			})
			require.NoError(r.t, r.wakeModel("m", time.Hour))
			_, err := r.maps.Push(fmt.Appendf(nil, `{"placements":[
				{"model":"m","kind":"chat","site":"here","scale_from_zero":true,"wake":{"url":"http://hooks/%s"}},
				{"model":"m","kind":"rerank","site":"here","scale_from_zero":true,"wake":{"url":"http://hooks/%s","cooldown":"10m"}}]}`, chat, rerank), false)
			require.NoError(r.t, err)
			f(r, calls)
		})
	}
	hooked(func(r *rig, calls *called) {
		require.Equal(r.t, []string{`/chat "kind":"chat"`, `/rerank "kind":"rerank"`}, calls.since(), "wanted ahead of its traffic, before the map came")
		p := r.join(pb.State_STATE_SERVING, "m")
		pass(10 * time.Minute)
		require.Equal(r.t, []string{`/rerank "kind":"rerank"`}, calls.since(), "chat is up")
		p.leave()
		require.Equal(r.t, []string{`/chat "kind":"chat"`}, calls.since(), "and lost")
	}, "chat", "rerank")
	hooked(func(r *rig, calls *called) {
		require.Equal(r.t, []string{"/both "}, calls.since())
		p := r.join(pb.State_STATE_SERVING, "m")
		pass(20 * time.Minute)
		require.Empty(r.t, calls.since(), "something of it is up")
		a := r.post("/v1/rerank", `{"model":"m","query":"q","documents":["d"]}`)
		require.Equal(r.t, []string{"/both "}, calls.since(), "and not what is waited for")
		pass(4 * time.Minute)
		require.Empty(r.t, calls.since(), "the longer cooldown counts")
		a.gone()
		p.leave()
		synctest.Wait()
		pass(time.Hour)
	}, "both", "both")
}

// A hook that refuses ends no wait while an agent is waking the model.
func TestAHookThatRefusesEndsNoWaitForAnAgentThatWakes(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		p := r.join(pb.State_STATE_ASLEEP, "m")
		first := r.chat("m")
		synctest.Wait()
		r.notifiers.wakeRefused("m", "its wake hook answered 404")
		synctest.Wait()
		require.Equal(r.t, 1, r.demand("m"))
		p.leave()
		synctest.Wait()
		r.notifiers.wakeRefused("m", "its wake hook answered 404")
		synctest.Wait()
		require.Equal(r.t, 1, r.holds("wake_failed"))
		require.Contains(r.t, first.all(), "its wake hook answered 404")
	})
}

// Nor does it while an agent waits for room in its group to wake the model.
func TestAHookThatRefusesEndsNoWaitForRoom(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		grouped := func(h *pb.Hello) { h.Group = &pb.Group{Name: "gpu", Room: 1, Cost: 1} }
		busy := r.joinAs("b", pb.State_STATE_SERVING, grouped, "other")
		p := r.joinAs("a", pb.State_STATE_ASLEEP, grouped, "m")
		other := r.chat("other")
		require.Contains(r.t, other.all(), "serve")
		first := r.chat("m")
		synctest.Wait()
		r.notifiers.wakeRefused("m", "its wake hook answered 404")
		synctest.Wait()
		require.Equal(r.t, 1, r.demand("m"))
		busy.leave()
		p.leave()
		synctest.Wait()
		first.gone()
		other.gone()
		pass(time.Second)
		r.envoyEnds()
	}, "--group-grace=0s")
}

// What an engine printed is shown to operators, and to no caller.
func TestACallerIsNotToldWhatTheEnginePrinted(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		p := r.join(pb.State_STATE_ASLEEP, "m")
		one := r.chat("m", off...)
		require.NoError(r.t, p.stream.Send(&pb.AgentMessage{Message: &pb.AgentMessage_WakeResult{WakeResult: &pb.WakeResult{
			Model: "m", Reason: "the engine ended with exit status 3", Detail: "loading from s3://models/m",
		}}}))
		require.Contains(r.t, one.all(), "model m could not be woken: the engine ended with exit status 3; retry in")
		require.NotContains(r.t, one.all(), "s3://")
		other := r.chat("m", off...)
		require.Contains(r.t, other.all(), "exit status 3", "while the wake cools down")
		require.NotContains(r.t, other.all(), "s3://")

		require.Equal(r.t, "the engine ended with exit status 3: loading from s3://models/m", r.status().Agents[0].Error)
		x := r.explain(admin.ExplainQuery{Model: "m", Kind: target.Chat})
		require.NotContains(r.t, x.Message, "s3://", "it is the answer")
		require.Contains(r.t, x.Steps[6].Why, "the wake failed: the engine ended with exit status 3: loading from s3://models/m")
		p.leave()
		synctest.Wait()
	})
}

// A model without a request has its series, and five hundred models have one of each, with no
// label but the model.
func TestEveryPlacedModelHasOneSeriesOfEachGaugeFromTheStart(t *testing.T) {
	t.Parallel()
	const models = 500
	bubble(t, func(r *rig) {
		placements := []string{
			`{"model":"m","kind":"chat","site":"here","scale_from_zero":true}`, `{"model":"m","kind":"rerank","site":"here","scale_from_zero":true}`,
			`{"model":"hour","kind":"chat","site":"here","scale_from_zero":true}`, `{"model":"half","kind":"chat","site":"here","scale_from_zero":true}`,
		}
		for i := range models - 3 {
			placements = append(placements, fmt.Sprintf(`{"model":"n%d","kind":"chat","site":"here","scale_from_zero":true}`, i))
		}
		_, err := r.maps.Push([]byte(`{"placements":[`+strings.Join(placements, ",")+`]}`), false)
		require.NoError(r.t, err)
		var asks []ask
		for i := range 10 {
			asks = append(asks, r.chat(fmt.Sprint("n", i%3)))
		}
		for _, name := range []string{"hivenet_pending_demand", "hivenet_wake_wanted"} {
			n := 0
			for series, value := range r.series(name) {
				require.Regexp(r.t, `^model=[a-z0-9]+$`, series)
				n++
				require.Equal(r.t, value > 0, series == "model=n0" || series == "model=n1" || series == "model=n2", series)
			}
			require.Equal(r.t, models, n, name)
		}
		for _, a := range asks {
			a.gone()
		}
	})
}

// Each router of a site exports what it holds itself, so that their sum is right without a
// leader.
func TestRoutersOfASiteExportTheirOwnDemand(t *testing.T) {
	t.Parallel()
	var sum int
	for _, holds := range []int{2, 0, 1} {
		r := &rig{App: newApp(t), t: t}
		_, err := r.maps.Push([]byte(rigMap), false)
		require.NoError(t, err)
		var all []*holdstate.Waiter
		for range holds {
			w, err := r.machine.Hold(holdstate.Request{Target: target.Target{Model: "m", Kind: target.Chat}})
			require.NoError(t, err)
			all = append(all, w)
		}
		require.Equal(t, []int{holds, min(holds, 1)}, []int{r.demand("m"), r.wanted("m")})
		sum += r.demand("m")
		for _, w := range all {
			w.Report(holdstate.Leave)
		}
		require.Zero(t, r.demand("m"))
		require.NoError(t, r.audit.Close())
	}
	require.Equal(t, 3, sum)
}

// The wake of a model is timed once, however many wait for it; a request to a model
// that is up is no wake.
func TestAWakeIsTimedOncePerModel(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		first := r.chat("m", off...)
		pass(3 * time.Second)
		second := r.chat("m", off...)
		pass(4 * time.Second)
		p := r.join(pb.State_STATE_SERVING, "m")
		third := r.chat("m", off...)
		require.Equal(r.t, map[string]float64{"model=m": 7}, r.series("hivenet_wake_seconds"))
		require.Equal(r.t, 1, int(r.gauge("hivenet_wake_seconds", "m")))
		for _, a := range []ask{first, second, third} {
			require.Contains(r.t, a.all(), "serve on")
			a.gone()
		}
		p.leave()
		pass(time.Second)
		r.envoyEnds()
	})
}

// No text of a request becomes a label.
func TestNoTextOfARequestIsALabel(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		const text = "zzz"
		count := func() (n int) {
			pass(time.Minute) // requests that were refused wait for their record in vain
			families, err := r.prometheus.Gather()
			require.NoError(r.t, err)
			for _, f := range families {
				for _, m := range f.GetMetric() {
					n++
					require.NotContains(r.t, m.String(), text)
				}
			}
			return n
		}
		ask := func(i int) {
			s := fmt.Sprint(text, i)
			r.post("/v1/chat/completions", `{"model":"`+s+`"}`, "x-request-id", s, "x-client-request-id", s, "authorization", "Bearer "+s)
			r.post("/v1/chat/completions?"+s, `{"model":"m",`+s, "x-wake-timeout", s)
			r.post("/"+s, `{"model":"m"}`, "user-agent", s)
			r.post("/v1/wake/"+s, `{}`, "content-encoding", s)
			r.post("/v1/embeddings", `{}`, ":method", text+strings.Repeat("Z", i))
		}
		ask(0)
		before := count()
		for i := range 50 {
			ask(i)
		}
		require.Equal(r.t, before, count())
	})
}

// series returns the values of a metric by its labels; of a histogram, the sums.
func (r *rig) series(name string) map[string]float64 {
	r.t.Helper()
	families, err := r.prometheus.Gather()
	require.NoError(r.t, err)
	values := map[string]float64{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			values[strings.Join(labels, " ")] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + m.GetHistogram().GetSampleSum()
		}
	}
	return values
}
