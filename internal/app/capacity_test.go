// SPDX-License-Identifier: Apache-2.0

package app

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
)

const (
	full     = `concurrency_limit_exceeded","message":"model m has as many requests in hand as it may; retry in 1 second"`
	tooLarge = `concurrency_limit_exceeded","message":"the request is larger than what the replicas of model m may have in hand`
)

// hashOf returns the key_hash of a key in a keys file.
func hashOf(key string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(key))) }

// words sends a chat request of about this many tokens.
func (r *rig) words(tokens int, headers ...string) ask {
	r.t.Helper()
	text := strings.Repeat("x", tokens*32/10)
	return r.post("/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"`+text+`"}]}`, headers...)
}

func TestTheGateBoundsWhatTheReplicasHaveInHand(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.join(pb.State_STATE_SERVING, "m")
		require.Contains(t, r.words(60).all(), "0s serve on 127.0.0.1:8000")
		require.Contains(t, r.words(30).all(), "0s serve on")
		parked := r.words(1)
		require.Empty(t, parked.all())
		require.Equal(t, 1, r.count("hivenet_admission_waiting", "m"))
		pass(250 * time.Millisecond)
		require.Contains(t, parked.all(), "250ms 429 {\"error\":{\"code\":\""+full)
		require.Contains(t, r.words(91).all(), "0s 429 {\"error\":{\"code\":\""+tooLarge)
		require.Equal(t, []float64{2, 0, 90, 90}, []float64{
			r.gauge("hivenet_admission_requests", "m"), r.gauge("hivenet_admission_waiting", "m"),
			r.gauge("hivenet_admission_tokens", "m"), r.gauge("hivenet_admission_tokens_limit", "m"),
		})
		require.Equal(t, 1, r.count("hivenet_admission_rejections_total", "m", "no_room"))
		require.Equal(t, 1, r.count("hivenet_admission_rejections_total", "m", "too_large"))
		require.Equal(t, 2, r.count("hivenet_agent_slots_in_use", "a"))

		late := r.words(80)
		pass(100 * time.Millisecond)
		r.joinAs("b", pb.State_STATE_SERVING, nil, "m")
		require.Contains(t, late.all(), "100ms serve on 127.0.0.1:8001", "a second replica makes room")
		pass(time.Second)
		r.envoyEnds()
		for _, name := range []string{"requests", "tokens", "waiting"} {
			require.Zero(t, r.gauge("hivenet_admission_"+name, "m"), name)
		}
	}, "--policy-file", temporary(t, "models: {m: {admit_budget_tokens: 100}}"))
}

// The gate is of the model, so that the end of a request of one kind admits one of another.
func TestRoomIsForAllKindsOfAModel(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.joinAs("a", pb.State_STATE_SERVING, func(h *pb.Hello) { h.Kinds = []string{"chat"} }, "m")
		r.joinAs("b", pb.State_STATE_SERVING, func(h *pb.Hello) { h.Kinds = []string{"embedding"} }, "m")
		require.Contains(t, r.chat("m").all(), "0s serve on 127.0.0.1:8000")
		waits := r.post("/v1/embeddings", `{"model":"m"}`)
		pass(time.Second)
		require.Empty(t, waits.all())
		r.envoyEnds() // after 10 s
		require.Contains(t, waits.all(), "11s serve on 127.0.0.1:8001")
		r.envoyEnds()
	}, "--admit-park-timeout=20s", "--policy-file", temporary(t, "models: {m: {max_inflight: 1}}"))
}

func TestAKeyOverItsShareIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	keys := "keys:\n- {id: small, tenant: t, max_occupancy_share: 0.25, key_hash: " + hashOf("small") + "}\n- {id: all, tenant: t, key_hash: " + hashOf("all") + "}\n"
	bubble(t, func(r *rig) {
		small, all := []string{"x-api-key", "small"}, []string{"x-api-key", "all"}
		over := `429 {"error":{"code":"rate_limit_exceeded","message":"this key has its share of model m in use; retry in 1 second"`
		held, second := r.words(20, small...), r.words(20, small...)
		pass(5 * time.Second)
		r.join(pb.State_STATE_SERVING, "m")
		require.Contains(t, held.all(), "5s serve on")
		require.Contains(t, second.all(), "5s "+over)
		require.Contains(t, r.words(26, small...).all(), `429 {"error":{"code":"rate_limit_exceeded","message":"the request is larger than this key's share of model m: make it shorter, or ask for less output","source":"router","retry_after":60}`)
		require.Contains(t, r.words(5, small...).all(), "0s serve on")
		require.Contains(t, r.words(50, all...).all(), "0s serve on")
		require.Equal(t, 2, r.count("hivenet_admission_rejections_total", "m", "over_share"))
		pass(time.Second)
		r.envoyEnds()
	}, "--wake-keepalive=0", "--auth-file", temporary(t, keys), "--policy-file", temporary(t, "models: {m: {admit_budget_tokens: 100}}"))
}

func TestReleasedRequestsWaitForRoomUntilTheirBudgetEnds(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		first, second := r.chat("m"), r.chat("m")
		large := r.words(200)
		pass(time.Minute)
		r.join(pb.State_STATE_SERVING, "m")
		require.Contains(t, first.all(), "1m0s serve on")
		require.Contains(t, large.all(), "1m0s 429 {\"error\":{\"code\":\""+tooLarge)
		pass(4*time.Minute - time.Nanosecond)
		require.Empty(t, second.all())
		pass(time.Nanosecond)
		require.Contains(t, second.all(), `5m0s 503 {"error":{"code":"model_waking","message":"model m woke up but is still at capacity; retry in 30 seconds"`)
		pass(time.Second)
		r.envoyEnds()
	}, "--admit-park-timeout=0", "--wake-keepalive=0", "--policy-file", temporary(t, "models: {m: {max_inflight: 1, admit_budget_tokens: 100}}"))
}

func TestAReloadedPolicyIsUsedWithinASecond(t *testing.T) {
	t.Parallel()
	path := temporary(t, "models: {m: {max_inflight: 1}}")
	bubble(t, func(r *rig) {
		go r.recheckWaiters(r.t.Context())
		first, second := r.chat("m"), r.chat("m")
		r.join(pb.State_STATE_SERVING, "m")
		require.Contains(t, first.all(), "serve on")
		require.NoError(t, os.WriteFile(path, []byte("models: {m: {max_inflight: 2}}"), 0o600))
		require.NoError(t, r.policy.Reload())
		pass(time.Second)
		require.Contains(t, second.all(), "serve on")
		pass(time.Second)
		r.envoyEnds()
	}, "--wake-keepalive=0", "--policy-file", path)
}

// Every request is measured, because a reload may limit its model while it is held.
func TestARequestHeldBeforeAReloadHasItsFootprintAtTheGate(t *testing.T) {
	t.Parallel()
	path := temporary(t, "models: {m: {max_inflight: 4}}")
	bubble(t, func(r *rig) {
		first, second, large := r.words(60), r.words(60), r.words(91)
		require.NoError(t, os.WriteFile(path, []byte("models: {m: {admit_budget_tokens: 100}}"), 0o600))
		require.NoError(t, r.policy.Reload())
		r.join(pb.State_STATE_SERVING, "m")
		require.Contains(t, first.all(), "serve on")
		require.Equal(t, 60, r.count("hivenet_admission_tokens", "m"))
		require.Empty(t, second.all(), "the first has most of the budget in hand")
		require.Contains(t, large.all(), "0s 429 {\"error\":{\"code\":\""+tooLarge)
		pass(time.Second)
		r.envoyEnds()
		require.Contains(t, second.all(), "serve on")
		r.envoyEnds()
	}, "--wake-keepalive=0", "--policy-file", path)
}

// stepsPolicy serves on the replicas of the region eu, then on all.
const stepsPolicy = "models: {m: {steps: [{name: near, match: {region: eu}, max_tries: 1}, {name: any}]}}"

func inRegion(region string, slots uint32) func(*pb.Hello) {
	return func(h *pb.Hello) { h.Region, h.Slots = region, slots }
}

func TestStepsAreTriedInOrder(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.joinAs("c", pb.State_STATE_SERVING, inRegion("us", 4), "m")
		require.Contains(t, r.chat("m").all(), "serve on 127.0.0.1:8002", "no replica of the first step is there")
		r.joinAs("b", pb.State_STATE_SERVING, inRegion("eu", 1), "m")
		require.Contains(t, r.chat("m").all(), "serve on 127.0.0.1:8001")
		waits := r.chat("m")
		require.Empty(t, waits.all(), "one slot of the first step is what it waits for")
		turnedOn := r.chat("m")
		require.Contains(t, turnedOn.all(), "serve on 127.0.0.1:8002", "the queue is full")
		pass(time.Minute)
		require.Contains(t, waits.all(), "1m0s serve on 127.0.0.1:8002")
		require.Equal(t, 1, r.count("hivenet_queue_wait_seconds", "m"))
		pass(time.Second)
		r.envoyEnds()
	}, "--queue-depth=1", "--policy-file", temporary(t, stepsPolicy))
}

func TestWithoutAQueueTheNextStepIsTriedAtOnce(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		first, second, third := r.chat("m"), r.chat("m"), r.chat("m")
		r.joinAs("c", pb.State_STATE_SERVING, inRegion("us", 1), "m")
		r.joinAs("b", pb.State_STATE_SERVING, inRegion("eu", 1), "m")
		require.Contains(t, first.all(), "serve on 127.0.0.1:8002")
		for _, x := range []ask{second, third} {
			require.Contains(t, x.all(), `503 {"error":{"code":"no_capacity"`, "one slot was there at the release")
		}
		require.Contains(t, r.chat("m").all(), "serve on 127.0.0.1:8001")
		require.Contains(t, r.chat("m").all(), `503 {"error":{"code":"no_capacity"`)
		pass(time.Second)
		r.envoyEnds()
	}, "--queue-depth=0", "--wake-keepalive=0", "--policy-file", temporary(t, stepsPolicy))
}

func TestNobodyOvertakesThoseWhoWaitForRoom(t *testing.T) {
	t.Parallel()
	for _, depth := range []string{"0", "1"} {
		t.Run(depth, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				first, second, third := r.words(170), r.words(170), r.words(170)
				r.joinAs("c", pb.State_STATE_SERVING, inRegion("us", 4), "m")
				r.joinAs("b", pb.State_STATE_SERVING, inRegion("eu", 1), "m")
				require.Contains(t, first.all(), "serve on 127.0.0.1:8002")
				require.Contains(t, second.all(), "serve on 127.0.0.1:8001")
				_ = r.chat("m") // fills the queue, where there is one
				small := r.chat("m")
				after := "0s" // the queue is full
				if depth == "0" {
					require.Empty(t, small.all())
					after = "250ms"
				}
				pass(250 * time.Millisecond)
				require.Contains(t, small.all(), after+" 429 {\"error\":{\"code\":\""+full, "though it is small enough, and a further step has a slot")
				require.Empty(t, third.all(), "it waits for room")
				pass(time.Second)
				r.envoyEnds()
				require.Contains(t, third.all(), "serve on")
				r.envoyEnds()
			}, "--queue-depth="+depth, "--wake-keepalive=0", "--policy-file",
				temporary(t, "models: {m: {admit_budget_tokens: 200, steps: [{name: near, match: {region: eu}}, {name: any}]}}"))
		})
	}
}
