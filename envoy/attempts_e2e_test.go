// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package envoy

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// throughTheLane returns a lab whose edge sends requests to first, and whose rehold
// lane sends them to second.
func throughTheLane(t testing.TB, concurrency int, first, second string) *lab {
	t.Helper()
	return newLab(t, concurrency, func(a asked) answer {
		if a.lane == LaneRehold {
			return answer{first: second}
		}
		return answer{first: first}
	})
}

func post(t testing.TB, l *lab, size int) *http.Response {
	t.Helper()
	resp, err := http.Post(l.url("/v1/chat/completions"), "application/json", strings.NewReader(strings.Repeat("x", size)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

func TestThePassAfterAFailedAttemptNamesIt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		first    string
		taken    bool
		answered bool
	}{
		"refused":                   {refusingEngine(t), false, false},
		"died after the body":       {dyingEngine(t, ""), true, false},
		"died in its head":          {dyingEngine(t, "HTTP/1.1 200 OK\r\ncontent-le"), true, true},
		"answered in nonsense":      {dyingEngine(t, "nonsense\r\n\r\n"), true, true},
		"answered with 101 headers": {dyingEngine(t, "HTTP/1.1 200 OK\r\n"+strings.Repeat("x: 1\r\n", 101)+"\r\n"), true, true},
	} {
		for _, size := range []int{100, 9 << 20} {
			seen := make(chan http.Header, 1)
			l := throughTheLane(t, 1, c.first, goodEngine(t, func(w http.ResponseWriter, r *http.Request) {
				seen <- r.Header
				echo(w, r)
			}))
			resp := post(t, l, size)
			body, err := io.ReadAll(resp.Body)
			require.NoError(t, err, name)
			require.Equal(t, http.StatusOK, resp.StatusCode, name)
			require.Len(t, body, size, name)

			edge, lane := l.nextAsk(t), l.nextAsk(t)
			require.Equal(t, LaneEdge, edge.lane, name)
			require.NotContains(t, edge.headers, FailedHeader, name)
			require.Equal(t, LaneRehold, lane.lane, name)
			require.Equal(t, edge.headers["x-request-id"], lane.headers["x-request-id"], name)
			failed, err := ParseFailed(lane.headers[FailedHeader])
			require.NoError(t, err, name)
			require.Equal(t, c.first, failed.Address.String(), name)
			require.Equal(t, c.taken, failed.Sent > uint64(size), "%s: %d bytes were sent", name, failed.Sent)
			require.Equal(t, c.answered, failed.Received > 0, "%s: %d bytes were received", name, failed.Received)
			engineSaw := <-seen
			require.NotContains(t, engineSaw, http.CanonicalHeaderKey(FailedHeader), name)
			require.NotContains(t, engineSaw, http.CanonicalHeaderKey(attemptHeader), name)

			record := l.nextLog(t, LogEdge).entry
			require.Equal(t, uint32(2), record.GetCommonProperties().GetUpstreamRequestAttemptCount(), name)
			require.Equal(t, reholdCluster, record.GetCommonProperties().GetUpstreamCluster(), name)
		}
	}
}

func TestAnEngineThatDiesInItsAnswerIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	first := dyingEngine(t, "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")
	l := throughTheLane(t, 1, first, goodEngine(t, echo))
	resp := post(t, l, 100)
	body, err := io.ReadAll(resp.Body)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Equal(t, "half", string(body))
	record := l.nextLog(t, LogEdge).entry
	require.True(t, record.GetCommonProperties().GetResponseFlags().GetUpstreamProtocolError())
	require.Equal(t, uint32(http.StatusOK), record.GetResponse().GetResponseCode().GetValue())
	require.Equal(t, uint32(1), record.GetCommonProperties().GetUpstreamRequestAttemptCount())
	require.Equal(t, LaneEdge, l.nextAsk(t).lane)
	require.Empty(t, l.asks)
}

func TestAClientThatLeavesIsInTheRecord(t *testing.T) {
	t.Parallel()
	arrived, leave := make(chan struct{}), make(chan struct{})
	good := goodEngine(t, func(http.ResponseWriter, *http.Request) {
		close(arrived)
		<-leave
	})
	l := newLab(t, 1, func(asked) answer { return answer{first: good} })
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, l.url("/wait"), strings.NewReader("x"))
	require.NoError(t, err)
	client := &http.Client{Timeout: 500 * time.Millisecond, Transport: &http.Transport{}}
	_, err = client.Do(req)
	require.Error(t, err)
	<-arrived
	require.True(t, l.nextLog(t, LogEdge).entry.GetCommonProperties().GetResponseFlags().GetDownstreamConnectionTermination())
	close(leave)
}

func TestADestinationThatIsNoAddressNamesNoFailedAttempt(t *testing.T) {
	t.Parallel()
	l := throughTheLane(t, 1, "engine.example:80", goodEngine(t, echo))
	resp := post(t, l, 10)
	_, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, LaneEdge, l.nextAsk(t).lane)
	if resp.StatusCode == http.StatusOK { // Envoy 1.40 tries the next cluster, 1.37 answers 503.
		lane := l.nextAsk(t)
		require.Equal(t, LaneRehold, lane.lane)
		require.NotContains(t, lane.headers, FailedHeader)
	} else {
		require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	}
}

// The lane adds headers to an answer. An answer at the limits of the engine's own
// connection must still pass the lane.
func TestAnAnswerAtTheLimitsComesBackThroughTheLane(t *testing.T) {
	t.Parallel()
	for name, headers := range map[string]string{
		"98 headers": strings.Repeat("x: 1\r\n", 97),
		"80 KiB":     "x: " + strings.Repeat("x", 81_800) + "\r\n",
	} {
		engine, _ := rawEngine(t, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n"+headers+"\r\n")
		l := throughTheLane(t, 1, refusingEngine(t), engine)
		require.Equal(t, http.StatusOK, post(t, l, 100).StatusCode, name)
		require.Equal(t, reholdCluster, l.nextLog(t, LogEdge).entry.GetCommonProperties().GetUpstreamCluster(), name)
	}
}
