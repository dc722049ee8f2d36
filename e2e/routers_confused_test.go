// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/valkey-io/valkey-go"
)

// The server loses everything, becomes a replica, has no memory, and delivers garbage, and a router
// stands still, while requests are served and held. No request fails, each is answered once, and
// afterwards the routers act as one.
func TestAServerThatMisbehavesCostsNoRequests(t *testing.T) {
	const slots, holds = 8, 30
	rs := startRouters(t, 3, "--wake-hold-max-per-key=1000", "--queue-depth=1000", "--request-timeout=60s")
	rs.putMap(fmt.Sprintf(soakMap, 1))
	c, e := newCounter(t, 10*time.Millisecond)
	rs.agent("warm", e.addr(), slots)
	admin, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{rs.valkey.Address()}, ForceSingleClient: true, DisableCache: true})
	require.NoError(t, err)
	t.Cleanup(admin.Close)
	tell := func(words ...string) {
		t.Helper()
		require.NoError(t, admin.Do(t.Context(), admin.B().Arbitrary(words...).Build()).Error())
	}
	var all, held []string
	var answers []<-chan result
	for n := range holds {
		of := fmt.Sprint("held-", n)
		held = append(held, of)
		answers = append(answers, rs.all[n%3].start(t.Context(), chatPath, chatBody("cold", false), "X-Of", of, "X-Client-Request-ID", uuid.NewString()))
	}
	agree := func() {
		t.Helper()
		for _, r := range rs.all {
			r.metric("hivenet_shared_up", "1")
			r.metric("hivenet_shared_routers", "3")
			r.metric(`hivenet_site_pending_demand{model="cold"}`, fmt.Sprint(holds))
		}
	}
	agree()
	for name, misbehave := range map[string]func(){
		"it loses everything": func() { tell("FLUSHALL"); tell("SCRIPT", "FLUSH") },
		"it is a replica": func() {
			tell("REPLICAOF", "127.0.0.1", "1")
			rs.all[0].metric("hivenet_shared_up", "0")
			tell("REPLICAOF", "NO", "ONE")
		},
		"it has no memory": func() {
			tell("CONFIG", "SET", "maxmemory", "1")
			rs.all[1].metric("hivenet_shared_up", "0")
			tell("CONFIG", "SET", "maxmemory", "0")
		},
		"it delivers garbage": func() {
			for _, channel := range []string{"demand", "activity", "gate", "router", "fails", "times", "map"} {
				for _, message := range []string{"", " ", "a 1 0 ", "a 1 4 cold\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "a 18446744073709551615 4 cold\x02", "4 cold-1", "a -1 4 coldx", strings.Repeat("x", 1<<20)} {
					tell("PUBLISH", "{site-1}:"+channel, message)
				}
			}
		},
	} {
		stop := make(chan struct{})
		var load sync.WaitGroup
		var mu sync.Mutex
		for i, r := range rs.all {
			load.Go(func() {
				tick := time.NewTicker(50 * time.Millisecond)
				defer tick.Stop()
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					case <-tick.C:
					}
					of := fmt.Sprintf("%s %d %d", name, i, n)
					answer := r.post(chatPath, chatBody("m", false), "X-Of", of)
					mu.Lock()
					all = append(all, of)
					if answer.err != nil || answer.status != http.StatusOK {
						t.Errorf("%s: %v %d %s", of, answer.err, answer.status, answer.body)
					}
					mu.Unlock()
				}
			})
		}
		misbehave()
		agree()
		close(stop)
		load.Wait()
	}
	still := rs.all[2].process.cmd.Process
	require.NoError(t, still.Signal(syscall.SIGSTOP))
	time.Sleep(3 * time.Second)
	require.NoError(t, still.Signal(syscall.SIGCONT))
	agree()
	c.ended(t, slots, all...)
	cold, e := newCounter(t, 10*time.Millisecond)
	rs.startAgent("cold", "cold", e.addr(), slots)
	for _, answer := range answers {
		r := <-answer
		require.NoError(t, r.err)
		require.Equal(t, http.StatusOK, r.status, r.body)
	}
	cold.ended(t, slots, held...)
	for _, r := range rs.all {
		r.metric(`hivenet_site_pending_demand{model="cold"}`, "0")
		r.metric(`hivenet_agent_slots_in_use{agent_id="cold"}`, "0")
		r.metric(`hivenet_agent_slots_in_use{agent_id="warm"}`, "0")
	}
}
