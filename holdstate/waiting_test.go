// SPDX-License-Identifier: Apache-2.0

package holdstate

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestGroupsAreTheWaitersByCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(Options{Limits: wide})
		require.Empty(t, r.Groups())
		begin := time.Now()
		wait := func(f func(Request) (*Waiter, error), q Request) *Waiter {
			time.Sleep(time.Second)
			w, err := f(r.slots.claiming(q))
			require.NoError(t, err)
			return w
		}
		b1 := wait(r.Machine.Hold, Request{Target: llama, Key: "hash of b", KeyID: "b", Tenant: "acme"})
		a := wait(r.Machine.Hold, Request{Target: llama, Key: "hash of a", KeyID: "a", Tenant: "acme"})
		b2 := wait(r.Machine.Hold, Request{Target: llama, Key: "hash of b", KeyID: "b", Tenant: "acme"})
		other := wait(r.Machine.Hold, Request{Target: qwen, Tenant: "default"})
		require.Equal(t, []Group{
			{Target: llama, KeyID: "b", Tenant: "acme", Requests: 2, Held: 2, Since: begin.Add(time.Second)},
			{Target: llama, KeyID: "a", Tenant: "acme", Requests: 1, Held: 1, Since: begin.Add(2 * time.Second)},
			{Target: qwen, Tenant: "default", Requests: 1, Held: 1, Since: begin.Add(4 * time.Second)},
		}, r.Groups())
		require.Zero(t, r.WakeTime("llama"))
		r.SetTimes("llama", []time.Duration{time.Second, 2 * time.Second, 3 * time.Second})
		require.Equal(t, 3*time.Second, r.WakeTime("llama"))
		for _, w := range []*Waiter{b1, a, b2, other} {
			w.Report(Leave)
		}
		require.Empty(t, r.Groups())
	})
}
