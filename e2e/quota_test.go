// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A key has one quota over three routers, also while Valkey is away: 200 requests a second get
// what a bucket of 600 a minute holds, and none gets an error.
func TestThreeRoutersCountOneQuota(t *testing.T) {
	for name, during := range map[string]func(rs *routers){
		"all the time": func(*routers) {},
		"while Valkey is killed and an empty one takes its place": func(rs *routers) {
			<-time.After(time.Second)
			rs.valkey.Stop()
			<-time.After(time.Second)
			rs.valkey.Restart()
		},
		"while Valkey is silent": func(rs *routers) {
			<-time.After(time.Second)
			resume := rs.valkey.Pause()
			<-time.After(2 * time.Second)
			resume()
		},
	} {
		t.Run(name, func(t *testing.T) {
			rs := startRouters(t, 3, "--auth-file", keysFile(t, "  quota: {requests_per_minute: 600}\n"))
			_, e := newCounter(t, 0)
			rs.agent("engine", e.addr(), 256)
			for _, r := range rs.all {
				r.metric("hivenet_shared_routers", "3")
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				during(rs)
			}()
			begin := time.Now()
			answers := rs.send(5*time.Millisecond, 5*time.Second, "Authorization", "Bearer "+apiKey)
			bucket := 600 + 10*time.Since(begin).Seconds()
			admitted, slowest := 0.0, time.Duration(0)
			for _, answer := range answers {
				r := <-answer
				require.NoError(t, r.err)
				require.Contains(t, []int{http.StatusOK, http.StatusTooManyRequests}, r.status, r.body)
				slowest = max(slowest, r.elapsed)
				if r.status == http.StatusOK {
					admitted++
				}
			}
			<-done
			t.Logf("%.0f of %d requests admitted, %.0f are in the bucket, the slowest took %v", admitted, len(answers), bucket, slowest)
			require.Less(t, slowest, 2*time.Second) // a call takes at most 5 ms; the machine may be busy
			require.LessOrEqual(t, admitted, bucket*1.01)
			require.GreaterOrEqual(t, admitted, bucket*0.95)
		})
	}
}

// send sends requests to the routers in turn, one every so often, for a time.
func (rs *routers) send(every, long time.Duration, headers ...string) (answers []<-chan result) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	end := time.After(long)
	for n := 0; ; n++ {
		select {
		case <-end:
			return answers
		case <-tick.C:
			r := rs.all[n%len(rs.all)]
			answers = append(answers, r.start(rs.t.Context(), chatPath, chatBody("m", false), headers...))
		}
	}
}
