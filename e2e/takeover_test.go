// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/takeover"
)

// succeed starts a process that takes over, and returns the one before it.
func (s *standalone) succeed() (before *process) {
	s.site.t.Helper()
	before = s.process
	s.process = start(s.site.t, s.flags...)
	s.process.waitLog("holdgate is ready")
	return before
}

// takeovers is how many takeovers in a row TestTakeoversLoseNothing makes.
func takeovers(t *testing.T) int {
	t.Helper()
	if text := os.Getenv("HOLDGATE_TAKEOVERS"); text != "" {
		n, err := strconv.Atoi(text)
		require.NoError(t, err)
		return n
	}
	return 4
}

// Processes take over from one another under load: no request fails, no hold ends, each request
// has one line in the audit log, and nothing is left of the processes before.
func TestTakeoversLoseNothing(t *testing.T) {
	const perSecond, silent, begun, each = 100, 50, 50, 5
	audit := filepath.Join(t.TempDir(), "audit.log")
	s := startStandalone(t, "--takeover", "--wake-keepalive", "500ms", "--wake-hold-max", "1000", "--audit-file", audit, "--request-timeout", "30s")
	agents := "unix://" + s.dir + "/agents.sock"
	startAgent(t, newEngine(t, nil), "fixed", 64, agents)
	s.waitLog("agent registered")
	s.http.Transport.(*http.Transport).MaxIdleConnsPerHost = 1000
	var early []<-chan result
	var streams []<-chan *wire
	hold := func(silent, begun int) {
		for range silent {
			early = append(early, s.start(t.Context(), chatPath, chatBody("m", false), "X-Wake-Keepalive", "off"))
		}
		for range begun {
			streams = append(streams, s.send(chatPath, chatBody("m", true)))
		}
	}
	hold(silent, begun)
	s.eventually("all are held", func() bool { return s.series()[pending] == silent+begun })
	stopLoad := s.load(perSecond, "fixed")
	var ended []*process
	n := takeovers(t)
	for i := range n {
		time.Sleep(500 * time.Millisecond) // load between the takeovers
		ended = append(ended, s.succeed())
		hold(each, each)
		want := float64(silent + begun + (i+1)*2*each)
		s.eventually("the demand of all processes is seen at the last", func() bool { return s.series()[pending] == want })
	}
	time.Sleep(500 * time.Millisecond)
	sent, failures := stopLoad()
	require.Empty(t, failures, "of %d", sent)

	startAgent(t, newEngine(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "data: answer\n\n") }), "m", 16, agents)
	for _, a := range early {
		r := <-a
		require.NoError(t, r.err)
		require.Equal(t, http.StatusOK, r.status, r.body)
	}
	for _, a := range streams {
		w := <-a
		require.True(t, w.whole)
		require.Equal(t, "data: answer\n\n", strings.ReplaceAll(w.body, comment, ""))
	}
	for _, p := range ended {
		require.NoError(t, p.ends())
	}
	s.eventually("nothing is left", func() bool {
		now := s.series()
		return now[pending] == 0 && now[`hivenet_agent_slots_in_use{agent_id="`+hostname(t)+`-fixed"}`] == 0 && now[`hivenet_agent_slots_in_use{agent_id="`+hostname(t)+`-m"}`] == 0
	})
	require.NoError(t, s.cmd.Process.Signal(os.Interrupt))
	require.NoError(t, s.ends())
	requireOneLineEach(t, audit, sent+len(early)+len(streams))
	t.Logf("%d takeovers, %d warm requests, %d holds", n, sent, len(early)+len(streams))
}

// A request of the old process whose engine dies after the takeover continues in the new one.
func TestARequestWhoseEngineDiesMovesToTheNewProcess(t *testing.T) {
	audit := filepath.Join(t.TempDir(), "audit.log")
	s := startStandalone(t, "--takeover", "--audit-file", audit)
	agents := "unix://" + s.dir + "/agents.sock"
	begun, die := make(chan struct{}, 1), make(chan struct{})
	dying := newEngine(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			return
		}
		begun <- struct{}{}
		<-die
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_ = conn.Close()
		}
	})
	startAgent(t, dying, "m", 1, agents)
	s.waitLog("agent registered")
	answer := s.start(t.Context(), chatPath, chatBody("m", false))
	<-begun
	before := s.succeed()
	good := start(t, "agent", "--id", "good", "--engine", "custom", "--backend-url", "http://"+newEngine(t, nil).addr(), "--model", "m", "--capability", "llm", "--router", agents)
	good.waitLog("registered with the router")
	s.waitLog(`"agent":"good"`)
	close(die)
	r := <-answer
	require.NoError(t, r.err)
	require.Equal(t, http.StatusOK, r.status, r.body)
	require.NoError(t, before.ends())
	s.eventually("its line is written", func() bool {
		text, err := os.ReadFile(audit)
		return err == nil && len(text) > 0
	})
	require.NoError(t, s.cmd.Process.Signal(os.Interrupt))
	require.NoError(t, s.ends())
	requireOneLineEach(t, audit, 1)
}

// systemctl reload sends SIGUSR2 to the main process: it starts the next one, which tells systemd
// that it is the main process.
func TestAReloadReplacesTheProcess(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	systemd, err := net.ListenPacket("unixgram", socket)
	require.NoError(t, err)
	defer systemd.Close()
	t.Setenv("NOTIFY_SOCKET", socket)
	told := func() string {
		buf := make([]byte, 1024)
		require.NoError(t, systemd.SetReadDeadline(time.Now().Add(20*time.Second)))
		n, _, err := systemd.ReadFrom(buf)
		require.NoError(t, err)
		return string(buf[:n])
	}
	s := startStandalone(t, "--takeover", "--wake-keepalive", "300ms")
	t.Setenv("NOTIFY_SOCKET", "") // the agent below is not of this service
	require.Equal(t, fmt.Sprintf("MAINPID=%d\nREADY=1", s.cmd.Process.Pid), told())
	held := s.start(t.Context(), chatPath, chatBody("m", true))
	s.eventually("it is held", func() bool { return s.series()[pending] == 1 })
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGUSR2))
	var main int
	_, err = fmt.Sscanf(told(), "MAINPID=%d\nREADY=1", &main)
	require.NoError(t, err)
	require.NotEqual(t, s.cmd.Process.Pid, main)
	t.Cleanup(func() { _ = syscall.Kill(main, syscall.SIGKILL) })
	s.eventually("the next process knows of the hold", func() bool { return s.series()[pending] == 1 })
	startAgent(t, newEngine(t, nil), "m", 1, "unix://"+s.dir+"/agents.sock")
	r := <-held
	require.Equal(t, `{"answer":true}`, strings.ReplaceAll(r.body, comment, ""))
	gone(t, []int{s.cmd.Process.Pid}) // the next process has its output, too
	require.NoError(t, syscall.Kill(main, syscall.SIGTERM))
	require.Equal(t, "STOPPING=1", told())
	gone(t, []int{main})
}

// A process that cannot take over leaves the other one as it was.
func TestAFailedTakeoverChangesNothing(t *testing.T) {
	s := startStandalone(t, "--takeover")
	startAgent(t, newEngine(t, nil), "fixed", 4, "unix://"+s.dir+"/agents.sock")
	s.waitLog("agent registered")
	stopLoad := s.load(50, "fixed")
	for range 3 {
		bad := start(t, append(slices.Clone(s.flags), "--ports-file", s.dir+"/missing/ports.json")...)
		require.Error(t, bad.ends())
		s.waitLog("a process could not take over: this one goes on")
	}
	for messages := range 3 {
		s.succeedUntil(messages)
	}
	s.eventually("all were noticed", func() bool {
		return strings.Count(s.out.String(), "a process could not take over: this one goes on") == 6
	})
	time.Sleep(200 * time.Millisecond) // some load
	before := s.succeed()
	require.NoError(t, before.ends())
	sent, failures := stopLoad()
	require.Empty(t, failures, "of %d", sent)
	s.eventually("nothing is left", func() bool { return s.series()[`hivenet_agent_slots_in_use{agent_id="`+hostname(t)+`-fixed"}`] == 0 })
}

// succeedUntil plays a process that takes over, and ends after some of its messages.
func (s *standalone) succeedUntil(messages int) {
	t := s.site.t
	t.Helper()
	conn, err := takeover.Dial(t.Context(), s.dir+"/takeover.sock")
	require.NoError(t, err)
	defer conn.Close()
	sockets, err := conn.ReceiveSockets(time.Second)
	require.NoError(t, err)
	for _, socket := range sockets {
		t.Cleanup(func() { _ = socket.Close() })
	}
	for _, m := range []*takeover.Message{{Ready: &takeover.Ready{PID: 1}}, {Commit: &takeover.Commit{PID: 1}}}[:messages] {
		_, err = conn.Receive(5 * time.Second)
		require.NoError(t, err)
		require.NoError(t, conn.Send(m))
	}
	_, err = conn.Receive(5 * time.Second)
	require.NoError(t, err)
}

func hostname(t *testing.T) string {
	t.Helper()
	name, err := os.Hostname()
	require.NoError(t, err)
	return name
}

// requireOneLineEach requires n lines, each with an id of its own and status 200.
func requireOneLineEach(t *testing.T, path string, n int) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	ids := map[string]int{}
	var bad []string
	for line := range strings.Lines(string(text)) {
		var rec struct {
			ID     string `json:"request_id"`
			Status int    `json:"status"`
		}
		require.NoError(t, json.Unmarshal([]byte(line), &rec), line)
		ids[rec.ID]++
		if rec.Status != http.StatusOK || ids[rec.ID] > 1 {
			bad = append(bad, line)
		}
	}
	require.Empty(t, bad)
	require.Len(t, ids, n)
}
