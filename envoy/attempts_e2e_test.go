// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package envoy

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	"github.com/stretchr/testify/require"
)

// throughTheLane is a lab whose edge sends requests to first, and whose rehold
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

func TestAFailedAttemptIsRecordedAndItsPassNamesIt(t *testing.T) {
	t.Parallel()
	flagUF := func(f *accesslogv3.ResponseFlags) bool { return f.GetUpstreamConnectionFailure() }
	flagUC := func(f *accesslogv3.ResponseFlags) bool { return f.GetUpstreamConnectionTermination() }
	flagUPE := func(f *accesslogv3.ResponseFlags) bool { return f.GetUpstreamProtocolError() }
	for name, c := range map[string]struct {
		first string
		flag  func(*accesslogv3.ResponseFlags) bool
		taken bool
	}{
		"refused":              {refusingEngine(t), flagUF, false},
		"died after the body":  {dyingEngine(t, ""), flagUC, true},
		"died in its head":     {dyingEngine(t, "HTTP/1.1 200 OK\r\ncontent-le"), flagUPE, true},
		"answered in nonsense": {dyingEngine(t, "nonsense\r\n\r\n"), flagUPE, true},
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
			engineSaw := <-seen
			require.NotContains(t, engineSaw, http.CanonicalHeaderKey(FailedHeader), name)
			require.NotContains(t, engineSaw, http.CanonicalHeaderKey(attemptHeader), name)

			record := l.nextLog(t, LogAttempt).entry
			require.True(t, c.flag(record.GetCommonProperties().GetResponseFlags()), "%s: %v", name, record.GetCommonProperties().GetResponseFlags())
			require.Equal(t, edge.headers["x-request-id"], record.GetRequest().GetRequestId(), name)
			require.Equal(t, c.first, socket(record), name)
			require.Nil(t, record.GetResponse().GetResponseCode(), name)

			record = l.nextLog(t, LogEdge).entry
			require.Equal(t, uint32(2), record.GetCommonProperties().GetUpstreamRequestAttemptCount(), name)
			require.Equal(t, reholdCluster, record.GetCommonProperties().GetUpstreamCluster(), name)
		}
	}
}

func socket(record *accesslogv3.HTTPAccessLogEntry) string {
	at := record.GetCommonProperties().GetUpstreamRemoteAddress().GetSocketAddress()
	return endpoint{host: at.GetAddress(), port: at.GetPortValue()}.String()
}

func TestAnEngineThatDiesInItsAnswerIsRecordedWithItsStatusAndNotRetried(t *testing.T) {
	t.Parallel()
	first := dyingEngine(t, "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")
	l := throughTheLane(t, 1, first, goodEngine(t, echo))
	resp := post(t, l, 100)
	body, err := io.ReadAll(resp.Body)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Equal(t, "half", string(body))
	record := l.nextLog(t, LogAttempt).entry
	require.True(t, record.GetCommonProperties().GetResponseFlags().GetUpstreamProtocolError())
	require.Equal(t, uint32(http.StatusOK), record.GetResponse().GetResponseCode().GetValue())
	require.Equal(t, uint32(1), l.nextLog(t, LogEdge).entry.GetCommonProperties().GetUpstreamRequestAttemptCount())
	require.Equal(t, LaneEdge, l.nextAsk(t).lane)
	require.Empty(t, l.asks)
}

func TestWhatGoesWellAndWhatAClientEndsIsNoFailedAttempt(t *testing.T) {
	t.Parallel()
	arrived, leave, refusing := make(chan struct{}), make(chan struct{}), refusingEngine(t)
	good := goodEngine(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			close(arrived)
			<-leave
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	l := newLab(t, 1, func(a asked) answer {
		if a.lane == LaneEdge && a.headers[":path"] == "/refused" {
			return answer{first: refusing}
		}
		return answer{first: good}
	})
	require.Equal(t, http.StatusServiceUnavailable, post(t, l, 10).StatusCode, "an engine's own 503 is its answer")
	require.NotNil(t, l.nextLog(t, LogEdge))

	// A client that leaves a served request.
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, l.url("/wait"), strings.NewReader("x"))
	require.NoError(t, err)
	client := &http.Client{Timeout: 500 * time.Millisecond, Transport: &http.Transport{}}
	_, err = client.Do(req) //nolint:bodyclose // there is none.
	require.Error(t, err)
	<-arrived
	record := l.nextLog(t, LogEdge).entry
	require.True(t, record.GetCommonProperties().GetResponseFlags().GetDownstreamConnectionTermination())
	close(leave)

	// The first record of the log is of a later request that did fail.
	resp, err := http.Get(l.url("/refused"))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, "/refused", l.nextLog(t, LogAttempt).entry.GetRequest().GetPath())
}

func TestADestinationThatIsNoAddressNamesNoFailedAttempt(t *testing.T) {
	t.Parallel()
	l := throughTheLane(t, 1, "engine.example:80", goodEngine(t, echo))
	resp := post(t, l, 10)
	_, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, LaneEdge, l.nextAsk(t).lane)
	if resp.StatusCode == http.StatusOK { // Envoy 1.40 goes on to the next cluster, 1.37 answers 503.
		lane := l.nextAsk(t)
		require.Equal(t, LaneRehold, lane.lane)
		require.NotContains(t, lane.headers, FailedHeader)
	} else {
		require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	}
}

// BenchmarkAttemptRecordBeforeTheLane measures by how much the record of a
// failed attempt comes before the lane's ext_proc stream, and how often it
// comes after it. docs/envoy.md has the numbers.
func BenchmarkAttemptRecordBeforeTheLane(b *testing.B) {
	for name, first := range map[string]func(testing.TB) string{
		"refused": refusingEngine,
		"died":    func(t testing.TB) string { return dyingEngine(t, "") },
	} {
		for _, workers := range []int{1, 2} {
			b.Run(name+"/workers="+string(rune('0'+workers)), func(b *testing.B) {
				l := throughTheLane(b, workers, first(b), goodEngine(b, echo))
				var ahead []time.Duration
				for b.Loop() {
					_, err := io.Copy(io.Discard, post(b, l, 1000).Body)
					require.NoError(b, err)
					l.nextAsk(b)
					lane, record := l.nextAsk(b), l.nextLog(b, LogAttempt)
					ahead = append(ahead, lane.at.Sub(record.at))
				}
				slices.Sort(ahead)
				late, _ := slices.BinarySearch(ahead, 0)
				b.ReportMetric(100*float64(late)/float64(len(ahead)), "%late")
				b.ReportMetric(float64(ahead[len(ahead)/2].Microseconds()), "µs-ahead-median")
				b.ReportMetric(float64(ahead[0].Microseconds()), "µs-ahead-worst")
			})
		}
	}
}
