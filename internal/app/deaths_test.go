// SPDX-License-Identifier: Apache-2.0

package app

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/envoy"
)

// victim is a request under which engines die.
type victim struct {
	r  *rig
	id string
}

// served returns a victim that the replica at address gets at once.
func (r *rig) served(address string) *victim {
	r.t.Helper()
	v := &victim{r, uuid.NewString()}
	require.Contains(r.t, r.chat("m", "x-request-id", v.id).all(), "0s serve on "+address)
	return v
}

// died is the pass through the rehold lane after the engine at address took the
// request and ended the connection.
func (v *victim) died(address string) ask {
	v.r.t.Helper()
	return v.r.postIn(envoy.LaneRehold, "/v1/chat/completions", `{"model":"m"}`, "x-request-id", v.id, envoy.FailedHeader, address+";sent=300")
}

const (
	addressA = "127.0.0.1:8000"
	addressB = "127.0.0.1:8001"
)

// A request whose connection an engine dropped does not go to this engine again for 500 ms,
// then 1 s, although the engine reports that it is healthy. Other requests do.
func TestTheSameReplicaIsTriedAgainAfterAPause(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{"a queue": nil, "no queue": {"--queue-depth=0"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				t := r.t
				a := r.join(pb.State_STATE_SERVING, "m")
				v := r.served(addressA)

				second := v.died(addressA)
				require.Empty(t, second.all())
				pass(2 * time.Millisecond)
				a.says(t, pb.State_STATE_SERVING)
				require.Contains(t, r.chat("m").all(), "0s serve on "+addressA, "others may use it")
				pass(497 * time.Millisecond)
				require.Empty(t, second.all())
				pass(time.Millisecond)
				require.Contains(t, second.all(), "500ms serve on "+addressA)

				third := v.died(addressA)
				pass(20 * time.Millisecond) // the health question of a second failure in a row waits a little
				a.says(t, pb.State_STATE_SERVING)
				pass(979 * time.Millisecond)
				require.Empty(t, third.all())
				pass(time.Millisecond)
				require.Contains(t, third.all(), "1s serve on "+addressA)

				require.Contains(t, v.died(addressA).all(), `0s 502 {"error":{"code":"backend_error"`)
				r.envoyEnds()
			}, append(flags, "--wake-keepalive=0")...)
		})
	}
}

func TestAnotherReplicaIsTriedAtOnce(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]string{
		"without a policy": "{}",
		"of the same step": "models: {m: {steps: [{name: any}]}}",
		"of the next step": "models: {m: {steps: [{name: near, match: {region: eu}}, {name: any}]}}",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				t := r.t
				a := r.joinAs("a", pb.State_STATE_SERVING, inRegion("eu", 4), "m")
				v := r.served(addressA)
				second := v.died(addressA)
				pass(time.Millisecond)
				a.says(t, pb.State_STATE_SERVING)
				require.Empty(t, second.all())
				r.joinAs("b", pb.State_STATE_SERVING, inRegion("us", 4), "m")
				require.Contains(t, second.all(), "1ms serve on "+addressB)
				require.Contains(t, v.died(addressB).all(), `0s 502 {"error":{"code":"backend_error"`, "two engines")
				r.envoyEnds()
			}, "--policy-file", temporary(t, policy), "--wake-keepalive=0")
		})
	}
}

// While a request may not go to one replica, it waits for a slot of another one, and such a
// slot ends the pause.
func TestAPauseEndsWithAnotherReplicasSlot(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		a := r.joinAs("a", pb.State_STATE_SERVING, inRegion("eu", 1), "m")
		v := r.served(addressA)
		b := r.joinAs("b", pb.State_STATE_SERVING, inRegion("eu", 1), "m")
		other := r.served(addressB)
		second := v.died(addressA)
		a.says(t, pb.State_STATE_SERVING)
		pass(100 * time.Millisecond)
		require.Empty(t, second.all())
		third := other.died(addressB) // which gives its slot back
		b.says(t, pb.State_STATE_SERVING)
		require.Contains(t, second.all(), "100ms serve on "+addressB)
		require.Contains(t, third.all(), "0s serve on "+addressA)
		r.envoyEnds()
	}, "--wake-keepalive=0")
}

// A model that may not be held is not waited for, but it is no unknown one.
func TestAReplicaThatDiesUnderAModelThatIsNotHeld(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		_, err := r.maps.Push([]byte(`{"placements": [{"model": "m", "kind": "chat", "site": "here"}]}`), true)
		require.NoError(t, err)
		r.join(pb.State_STATE_SERVING, "m")
		v := r.served(addressA)
		pass(10 * time.Second)
		require.Contains(t, v.died(addressA).all(), `0s 502 {"error":{"code":"backend_error"`)
		r.envoyEnds()
	}, "--wake-keepalive=0")
}
