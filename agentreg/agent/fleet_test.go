// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/agentreg"
)

// all are the agents of the backend as the router sees them.
func (v *backendRig) all() (list []string) {
	synctest.Wait()
	for _, a := range v.reg.Agents() {
		list = append(list, fmt.Sprintf("%s %s %s", a.ID, a.State, a.Address))
	}
	return list
}

// A name with many addresses is many replicas, which come and go with them.
func TestEachAddressOfABackendIsAReplica(t *testing.T) {
	withBackend(t, func(c *Config) { c.Slots = 2 }, func(v *backendRig) {
		v.named("192.0.2.1", "192.0.2.2", "169.254.0.1")
		v.health.Store(http.StatusOK)
		v.want(true)
		require.Equal(t, []string{"backend/b serving 192.0.2.1:8000", "backend/b#2 serving 192.0.2.2:8000"}, v.all(), "no request can be sent to a link-local address")
		require.Equal(t, agentreg.Capacity{Replicas: 2, Slots: 4, Free: 4}, v.reg.Capacity(llama))

		v.named("192.0.2.2", "192.0.2.3")
		after(steadyPoll)
		require.Equal(t, []string{"backend/b serving 192.0.2.1:8000", "backend/b#2 serving 192.0.2.2:8000", "backend/b#3 serving 192.0.2.3:8000"}, v.all(),
			"one that answers stays for some lookups")
		after(maxMissed * steadyPoll)
		require.Equal(t, []string{"backend/b#2 serving 192.0.2.2:8000", "backend/b#3 serving 192.0.2.3:8000"}, v.all())

		v.named("192.0.2.2", "192.0.2.3", "192.0.2.4")
		after(steadyPoll)
		require.Equal(t, []string{"backend/b serving 192.0.2.4:8000", "backend/b#2 serving 192.0.2.2:8000", "backend/b#3 serving 192.0.2.3:8000"}, v.all())
		v.heard()
		v.refuse("192.0.2.4:8000", true)
		after(10 * time.Second)
		require.Equal(t, 2, v.reg.Serving(llama))
		require.NotContains(t, v.heard(), "up false", "the others serve")
		v.health.Store(0)
		after(10 * time.Second)
		require.Zero(t, v.reg.Serving(llama))
		require.Contains(t, v.heard(), "up false")
	})
}

// A name may have more addresses than a router can use, in another order at each lookup.
func TestABackendHasALimitOfReplicas(t *testing.T) {
	log := &lockedBuffer{}
	withBackend(t, func(c *Config) { c.Log = zerolog.New(log) }, func(v *backendRig) {
		var many []string
		for i := range MaxReplicas + 40 {
			many = append(many, fmt.Sprintf("192.0.%d.%d", 2+i/200, 1+i%200))
		}
		v.named(many...)
		v.health.Store(http.StatusOK)
		v.want(true)
		require.Equal(t, MaxReplicas, v.reg.Serving(llama))
		first := v.all()
		for range 3 {
			slices.Reverse(many)
			v.named(many...)
			after(maxMissed * 2 * steadyPoll)
			require.Equal(t, first, v.all(), "they keep their addresses")
		}
		require.Equal(t, 1, strings.Count(log.String(), "more addresses than"))
		v.named(many[:3]...)
		after(maxMissed * 2 * steadyPoll)
		require.Equal(t, 3, v.reg.Serving(llama))
		v.named(many...)
		after(steadyPoll)
		require.Equal(t, 2, strings.Count(log.String(), "more addresses than"), "it was not so in between")
	})
}

// What was looked up before stays in use.
func TestALookupThatFailsChangesNothing(t *testing.T) {
	log := &lockedBuffer{}
	withBackend(t, func(c *Config) { c.Log = zerolog.New(log) }, func(v *backendRig) {
		v.named("192.0.2.1", "192.0.2.2")
		v.health.Store(http.StatusOK)
		v.want(true)
		v.noNames.Store(true)
		after(20 * steadyPoll)
		require.Equal(t, 2, v.reg.Serving(llama))
		const told = "the addresses that are known stay in use"
		require.Equal(t, 1, strings.Count(log.String(), told))
		v.noNames.Store(false)
		after(steadyPoll)
		v.noNames.Store(true)
		after(20 * steadyPoll)
		require.Equal(t, 2, strings.Count(log.String(), told), "it had succeeded in between")
		require.Equal(t, 2, v.reg.Serving(llama))
	})
}

// IPv4 and IPv6 may be one engine twice, and the addresses of a pool lead to the same
// ones: then the next address is for a try that failed.
func TestAddressesThatMayBeOneEngineAreTriedInTurn(t *testing.T) {
	for name, c := range map[string]struct {
		addresses []string
		pool      bool
		second    string
	}{
		"two families": {[]string{"2001:db8::1", "192.0.2.1"}, false, "[2001:db8::1]:8000"},
		"a pool":       {[]string{"192.0.2.1", "192.0.2.2"}, true, "192.0.2.2:8000"},
	} {
		t.Run(name, func(t *testing.T) {
			withBackend(t, func(cfg *Config) { cfg.Pool = c.pool }, func(v *backendRig) {
				v.named(c.addresses...)
				v.refuse("192.0.2.1:8000", true)
				v.health.Store(http.StatusOK)
				v.want(true)
				require.Equal(t, "asleep 192.0.2.1:8000", v.state())
				after(eagerPoll)
				require.Equal(t, "serving "+c.second, v.state())
				v.refuse("192.0.2.1:8000", false)
				after(time.Minute)
				require.Equal(t, "serving "+c.second, v.state(), "it stays")
				v.refuse(c.second, true)
				after(10 * time.Second)
				require.Equal(t, "serving 192.0.2.1:8000", v.state())
			})
		})
	}
}

// Some frontends are healthy and list nothing while no engine is up.
func TestABackendIsHealthyWhileItListsItsModel(t *testing.T) {
	withBackend(t, func(c *Config) { c.HealthModel = true }, func(v *backendRig) {
		var lists atomic.Value
		lists.Store("")
		v.engine = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"data":[%s]}`, lists.Load())
		})
		v.health.Store(http.StatusOK)
		v.want(true)
		require.Equal(t, "asleep 192.0.2.1:8000", v.state())
		lists.Store(`{"id":"other"},{"id":"llama"}`)
		after(eagerPoll)
		require.Equal(t, "serving 192.0.2.1:8000", v.state())
		lists.Store(`{"id":"other"}`)
		after(10 * time.Second)
		require.Equal(t, "asleep 192.0.2.1:8000", v.state())
	})
}
