// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// bigBody returns a request of about n bytes.
func bigBody(model string, n int) string {
	return `{"messages":[{"role":"user","content":"` + strings.Repeat("x", n) + `"}],"model":"` + model + `"}`
}

// dyingEngine reads whole requests and closes the connection without an answer, deaths
// times; after that it answers.
func dyingEngine(t *testing.T, deaths int32) *engine {
	t.Helper()
	var n atomic.Int32
	return newEngine(t, func(w http.ResponseWriter, _ *http.Request) {
		if n.Add(1) <= deaths {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				_ = conn.Close()
			}
			return
		}
		_, _ = io.WriteString(w, `{"answer":"second"}`)
	})
}

// until sends requests, which must all be answered, until met returns true: which of
// two idle replicas is chosen first is not defined.
func (s *site) until(body string, met func() bool) int {
	s.t.Helper()
	for n := 1; n <= 50; n++ {
		r := s.post(chatPath, body)
		require.NoError(s.t, r.err)
		require.Equal(s.t, http.StatusOK, r.status, r.body)
		if met() {
			return n
		}
	}
	require.Fail(s.t, "50 requests did not meet the replica")
	return 0
}

func TestAReplicaThatRefusesCostsOnlyTime(t *testing.T) {
	for name, size := range map[string]int{"small": 10, "200 KiB": 200 << 10, "9 MiB": 9 << 20} {
		t.Run(name, func(t *testing.T) {
			s := startSite(t)
			s.register(hello("gone", closedPort(t), 8, "m"))
			e := newEngine(t, nil)
			s.register(hello("good", e.addr(), 1, "m"))
			body := bigBody("m", size)
			n := s.until(body, func() bool { return strings.Contains(s.log.String(), "refused the connection") })
			got, sent := e.last()
			require.Equal(t, body, sent)
			require.Equal(t, int64(len(body)), got.ContentLength)
			require.Equal(t, n, e.count())
			s.atRest()
		})
	}
}

func TestAReplicaThatDiesBeforeItsAnswerCostsOnlyTime(t *testing.T) {
	for name, size := range map[string]int{"small": 10, "9 MiB": 9 << 20} {
		t.Run(name, func(t *testing.T) {
			s := startSite(t)
			bad := dyingEngine(t, 1)
			s.register(hello("bad", bad.addr(), 8, "m"))
			e := newEngine(t, nil)
			s.register(hello("good", e.addr(), 1, "m"))
			body := bigBody("m", size)
			n := s.until(body, func() bool { return bad.count() > 0 })
			require.Equal(t, 1, bad.count(), "the second attempt is another replica's")
			require.Equal(t, n, e.count(), "one attempt more than requests")
			for _, sent := range append(e.bodies, bad.bodies...) {
				require.Equal(t, body, sent)
			}
			s.atRest()
		})
	}
}

func TestARequestUnderWhichTwoEnginesDiedEndsWith502(t *testing.T) {
	s := startSite(t)
	deaths := 0
	bad := []*engine{dyingEngine(t, 100), dyingEngine(t, 100), dyingEngine(t, 100)}
	for i, e := range bad {
		s.register(hello(fmt.Sprint("bad-", i), e.addr(), 8, "m"))
	}
	r := s.post(chatPath, chatBody("m", false))
	require.Equal(t, http.StatusBadGateway, r.status, r.body)
	require.Contains(t, r.body, `"code":"backend_error"`)
	for _, e := range bad {
		deaths += e.count()
	}
	require.Equal(t, 2, deaths, "never a third engine")
	s.atRest()
}

func TestTheLastReplicaThatRefusesMeansAHold(t *testing.T) {
	s := startSite(t)
	gone := s.register(hello("gone", closedPort(t), 8, "m"))
	answer := s.start(t.Context(), chatPath, chatBody("m", false))
	s.metric(`hivenet_pending_demand{model="m"}`, "1")
	gone.leave()
	e := newEngine(t, nil)
	s.register(hello("good", e.addr(), 1, "m"))
	r := <-answer
	require.Equal(t, http.StatusOK, r.status, r.body)
	require.Equal(t, `{"answer":true}`, r.body)
	s.atRest()
}

func TestAHeldRequestSurvivesAnEngineThatDies(t *testing.T) {
	for name, deaths := range map[string]int32{"once": 1, "three times": 3} {
		t.Run(name, func(t *testing.T) {
			s := startSite(t)
			answer := s.start(t.Context(), chatPath, chatBody("m", false))
			s.metric(`hivenet_pending_demand{model="m"}`, "1")
			e := dyingEngine(t, deaths)
			begin := time.Now()
			s.register(hello("a", e.addr(), 1, "m"))
			r := <-answer
			require.Greater(t, time.Since(begin), 500*time.Millisecond, "the engine is left alone for a while")
			if deaths == 1 {
				require.Equal(t, http.StatusOK, r.status, r.body)
				require.Equal(t, `{"answer":"second"}`, r.body)
			} else {
				require.Equal(t, http.StatusBadGateway, r.status, r.body)
				require.Equal(t, 3, e.count())
			}
			s.atRest()
		})
	}
}

// When an engine closes idle connections, pooled requests get a reset.
func TestAnEngineThatClosesIdleConnectionsIsNoFailure(t *testing.T) {
	s := startSite(t)
	e := newEngine(t, nil)
	e.Config.IdleTimeout = 5 * time.Millisecond
	s.register(hello("a", e.addr(), 64, "m"))
	for range 60 {
		r := s.post(chatPath, chatBody("m", false))
		require.Equal(t, http.StatusOK, r.status, r.body)
		time.Sleep(4 * time.Millisecond) // close to the engine's own limit
	}
	s.atRest()
}

// rawEngine answers each connection by a script.
func rawEngine(t *testing.T, answer func(conn net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				r, err := http.ReadRequest(bufio.NewReader(conn))
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, r.Body)
				answer(conn)
			}()
		}
	}()
	return l.Addr().String()
}
