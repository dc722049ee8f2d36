// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// An agent that names the router's own edge is rejected at the first request that comes
// back.
func TestAnAgentThatNamesTheEdgeIsRejected(t *testing.T) {
	s, _ := startAudited(t)
	requests := func() int {
		text, err := os.ReadFile(s.audit)
		require.NoError(t, err)
		return strings.Count(string(text), "\n")
	}
	loop := hello("loop", strings.TrimPrefix(s.url, "http://"), 100, "m")
	loops := func(rejections int, answer <-chan result) {
		t.Helper()
		r := <-answer
		require.Equal(t, http.StatusLoopDetected, r.status, r.body)
		require.Contains(t, r.body, `"code":"loop_detected"`)
		s.eventually("the agent is rejected", func() bool {
			return strings.Count(s.log.String(), "came back to this router: name the engine") == rejections
		})
		s.eventually("two records of each request", func() bool { return requests() == 2*rejections })
	}
	held := s.start(t.Context(), chatPath, chatBody("m", false))
	s.metric(`hivenet_pending_demand{model="m"}`, "1")
	s.register(loop)
	loops(1, held)
	s.register(loop)
	loops(2, s.start(t.Context(), chatPath, chatBody("m", false)))
	s.atRest()
}
