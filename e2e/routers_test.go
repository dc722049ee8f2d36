// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/valkey-io/valkey-go"

	"github.com/holdgate/holdgate/internal/shared/valkeytest"
)

// The parts of a site end and start again, and its other routers serve on.
func TestARouterThatDiesLeavesTheOthersServing(t *testing.T) {
	rs := startRouters(t, 3)
	c, e := newCounter(t, 0)
	rs.agent("engine", e.addr(), 4)
	ask := func(rs ...*router) {
		t.Helper()
		for _, r := range rs {
			answer := r.post(chatPath, chatBody("m", false), "X-Of", r.url)
			require.Equal(t, http.StatusOK, answer.status, answer.body)
		}
	}
	ask(rs.all...)
	dead := rs.all[0]
	dead.kill()
	require.Equal(t, http.StatusServiceUnavailable, dead.post(chatPath, chatBody("m", false)).status)
	ask(rs.all[1:]...)
	dead.serve()
	dead.ready()
	dead.knows("engine")
	dead.killEnvoy()
	dead.startEnvoy()
	rs.valkey.Stop()
	ask(rs.all...)
	rs.valkey.Restart()
	for _, r := range rs.all {
		r.metric("hivenet_shared_up", "1")
		r.metric("hivenet_shared_routers", "3")
	}
	ask(rs.all...)
	require.Equal(t, map[string]int{dead.url: 3, rs.all[1].url: 4, rs.all[2].url: 4}, c.answered)
	for _, r := range rs.all {
		r.metric(`hivenet_agent_slots_in_use{agent_id="engine"}`, "0")
	}
}

// Requests that are served at once make no call to the server: neither for themselves nor for what
// the routers tell one another. One that is held does.
func TestAWarmRequestMakesNoCallToTheServer(t *testing.T) {
	rs := startRouters(t, 2)
	c, e := newCounter(t, 0)
	agent := rs.agent("engine", e.addr(), 4)
	r := rs.all[0]
	calls := func() (n int) {
		for _, call := range []string{"holds", "quota", "level"} {
			n += r.value(fmt.Sprintf("shared_call_seconds_count{call=%q}", call))
		}
		return n
	}
	before := calls()
	for n := range 100 {
		answer := r.post(chatPath, chatBody("m", false), "X-Of", strconv.Itoa(n))
		require.Equal(t, http.StatusOK, answer.status, answer.body)
	}
	require.Equal(t, before, calls())
	require.Len(t, c.answered, 100)
	require.NoError(t, agent.cmd.Process.Kill())
	r.eventually("the agent is gone", func() bool { return !strings.Contains(r.metrics(), `hivenet_agent_slots{agent_id="engine"}`) })
	_ = r.start(t.Context(), chatPath, chatBody("m", false))
	r.metric(`hivenet_pending_demand{model="m"}`, "1")
	r.eventually("calls for the held request", func() bool { return calls() > before })
}

// heldPerRouter is how many requests TestManyHeldAtThreeRoutersMeetFourSlots holds at each
// router, unless HOLDGATE_HELD says so.
const heldPerRouter = 100

// Requests are held at three routers, some of them at two at once because their client tried
// again. The demand is the number of distinct ones everywhere, and the engine that comes up
// never has more than its slots.
func TestManyHeldAtThreeRoutersMeetFourSlots(t *testing.T) {
	const slots, repeated = 4, 10
	held := number(t, "HOLDGATE_HELD", heldPerRouter)
	rs := startRouters(t, 3, "--wake-hold-max=10000", "--wake-hold-max-per-key=10000", "--wake-hold-max-total=10000", "--request-timeout=5m")
	var answers []<-chan result
	var all []string
	hold := func(r *router, n int, client string) {
		of := fmt.Sprintf("%s-%d", r.admin, n)
		all = append(all, of)
		answers = append(answers, r.start(t.Context(), chatPath, chatBody("m", false), "X-Of", of, "X-Client-Request-ID", client))
	}
	for i, r := range rs.all {
		clients := make([]string, held)
		for n := range clients {
			clients[n] = uuid.NewString()
			hold(r, n, clients[n])
		}
		for n, client := range clients[:repeated] {
			hold(rs.all[(i+1)%len(rs.all)], held+n, client)
		}
	}
	distinct := strconv.Itoa(len(rs.all) * held)
	for _, r := range rs.all {
		r.metric(`hivenet_pending_demand{model="m"}`, strconv.Itoa(held+repeated))
		r.metric(`hivenet_site_pending_demand{model="m"}`, distinct)
	}
	c, e := newCounter(t, 5*time.Millisecond)
	rs.startAgent("engine", "m", e.addr(), slots)
	for n, answer := range answers {
		r := <-answer
		require.NoError(t, r.err)
		require.Equal(t, http.StatusOK, r.status, r.body)
		require.Equal(t, answerOf(all[n]), strings.TrimLeft(r.body, " "))
	}
	c.ended(t, slots, all...)
	require.Equal(t, slots, c.most, "the routers used all slots")
	for _, r := range rs.all {
		r.metric(`hivenet_agent_slots_in_use{agent_id="engine"}`, "0")
		r.metric(`hivenet_pending_demand{model="m"}`, "0")
		r.metric(`hivenet_site_pending_demand{model="m"}`, "0")
	}
}

// number returns a number from the environment, or else the default.
func number(t *testing.T, variable string, otherwise int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, variable)
	return n
}

// The holds of a router that is killed leave the demand within 5 s, and wait at the other
// routers in their old place if their clients try again.
func TestTheHoldsOfAKilledRouterKeepTheirPlace(t *testing.T) {
	const early, late, gaveUp = 100, 20, 10
	rs := startRouters(t, 3, "--wake-order=arrival", "--wake-hold-max=1000", "--wake-hold-max-per-key=1000", "--request-timeout=5m")
	dead, others := rs.all[0], rs.all[1:]
	clients := make([]string, early)
	var refused []<-chan result
	for n := range clients { // one after the other, because their order counts
		clients[n] = uuid.NewString()
		refused = append(refused, dead.start(t.Context(), chatPath, chatBody("m", false), "X-Client-Request-ID", clients[n]))
		dead.metric(`hivenet_pending_demand{model="m"}`, strconv.Itoa(n+1))
	}
	var answers []<-chan result
	want := make([][]string, len(others))
	ask := func(at int, of, client string) {
		want[at] = append(want[at], of)
		answers = append(answers, others[at].start(t.Context(), chatPath, chatBody("m", false), "X-Of", of, "X-Client-Request-ID", client))
	}
	for n := range late {
		ask(n%2, fmt.Sprintf("late-%d of %d", n, n%2), uuid.NewString())
		others[n%2].metric(`hivenet_pending_demand{model="m"}`, strconv.Itoa(n/2+1))
	}
	for _, r := range rs.all {
		r.metric(`hivenet_site_pending_demand{model="m"}`, strconv.Itoa(early+late))
	}

	dead.kill()
	killed := time.Now()
	for _, answer := range refused {
		r := <-answer
		require.NoError(t, r.err)
		require.Equal(t, http.StatusServiceUnavailable, r.status, r.body)
	}
	later := want
	want = make([][]string, len(others))
	for n := range early - gaveUp { // from the last to the first, which must not count
		n = early - gaveUp - 1 - n
		ask(n%2, fmt.Sprintf("early-%d of %d", n, n%2), clients[n])
	}
	most := 0
	for time.Since(killed) < 5*time.Second {
		for _, r := range others {
			most = max(most, r.value(`site_pending_demand{model="m"}`))
		}
		time.Sleep(50 * time.Millisecond)
	}
	require.Equal(t, early+late, most, "nobody was counted twice")
	for at, r := range others {
		require.Equal(t, early+late-gaveUp, r.value(`site_pending_demand{model="m"}`))
		slices.Reverse(want[at])
		want[at] = append(want[at], later[at]...)
	}

	c, e := newCounter(t, 5*time.Millisecond)
	rs.startAgent("engine", "m", e.addr(), 2)
	for _, answer := range answers {
		r := <-answer
		require.NoError(t, r.err)
		require.Equal(t, http.StatusOK, r.status, r.body)
	}
	c.ended(t, 2, slices.Concat(want...)...)
	for at := range others {
		came := slices.DeleteFunc(slices.Clone(c.came), func(of string) bool { return !strings.HasSuffix(of, fmt.Sprintf(" of %d", at)) })
		for n, of := range want[at] { // two may be on their way to the engine at a time
			require.InDelta(t, n, slices.Index(came, of), 1, "%s in %v", of, came)
		}
	}
}

// front starts a load balancer in front of the edges.
func (rs *routers) front() *site {
	rs.t.Helper()
	var edges []string
	for _, r := range rs.all {
		edges = append(edges, r.envoy.EdgeAddr())
	}
	return startFront(rs.t, edges...)
}

// The load balancer sends a request to another router if that may answer it, and no hold that
// has expired.
func TestALoadBalancerRepeatsNoHold(t *testing.T) {
	rs := startRouters(t, 3)
	front := rs.front()
	r := front.post(chatPath, chatBody("short", false))
	require.Equal(t, http.StatusServiceUnavailable, r.status, r.body)
	require.Contains(t, r.body, "model_waking")
	expired := 0
	for _, r := range rs.all {
		expired += r.value(`wake_holds_total{outcome="expired"}`)
	}
	require.Equal(t, 1, expired)

	_, e := newCounter(t, 0)
	rs.agent("engine", e.addr(), 4)
	rs.all[1].kill() // its Envoy answers
	for range 12 {
		r := front.post(chatPath, chatBody("m", false))
		require.Equal(t, http.StatusOK, r.status, r.body)
	}
}

// The user of Valkey in the README of the example may do what routers do.
func TestRoutersNeedOnlyTheRightsOfTheExample(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join(root(t), "examples", "many-routers", "README.md"))
	require.NoError(t, err)
	user := regexp.MustCompile("`(user default [^`]*)`").FindSubmatch(readme)
	require.NotNil(t, user)
	dir := t.TempDir()
	acl, password := filepath.Join(dir, "users.acl"), filepath.Join(dir, "password")
	users := strings.Replace(string(user[1]), "PASSWORD", "s3cret", 1) + "\nuser root on >r00t ~* &* +@all\n"
	require.NoError(t, os.WriteFile(acl, []byte(users), 0o600))
	require.NoError(t, os.WriteFile(password, []byte("s3cret\n"), 0o600))
	server := valkeytest.StartReal(t, "--aclfile", acl)
	rs := startRoutersAt(t, server, 2,
		"--shared-password-file", password, "--auth-file", keysFile(t, "  quota: {requests_per_minute: 600}\n"), "--wake-linger", "0s")
	_, e := newCounter(t, 0)
	held := rs.all[0].start(t.Context(), chatPath, chatBody("m", false), "X-Api-Key", apiKey)
	rs.all[1].metric(`hivenet_site_pending_demand{model="m"}`, "1")
	rs.agent("engine", e.addr(), 4)
	require.Equal(t, http.StatusOK, (<-held).status)
	for _, r := range rs.all {
		answer := r.post(chatPath, chatBody("m", false), "X-Api-Key", apiKey)
		require.Equal(t, http.StatusOK, answer.status, answer.body)
		r.metric("hivenet_shared_routers", "2")
	}
	for _, r := range rs.all {
		r.terminate()
		require.NoError(t, r.process.ends())
	}
	admin, err := valkey.NewClient(valkey.ClientOption{
		InitAddress: []string{server.Address()}, Username: "root", Password: "r00t", ForceSingleClient: true, DisableCache: true,
	})
	require.NoError(t, err)
	defer admin.Close()
	refused, err := admin.Do(t.Context(), admin.B().Arbitrary("ACL", "LOG").Build()).ToArray()
	require.NoError(t, err)
	require.Empty(t, refused, "the server refused nothing")
}

func TestTheManyRoutersExample(t *testing.T) {
	program := filepath.Join(root(t), "examples", "many-routers", "run.sh")
	t.Run("once", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, program, "--once")
		out, err := cmd.Output()
		require.NoError(t, err, string(out))
		require.Equal(t, "edge 1 answers\nedge 2 answers\nedge 3 answers\nrouter 1 is killed\nedge 2 answers\nedge 3 answers\n", string(out))
	})
	t.Run("the lines that it prints", func(t *testing.T) {
		p := startProgram(t, program)
		p.waitLog("Ctrl-C ends everything")
		text, _, _ := strings.Cut(p.out.String(), "Kill a router")
		kills := p.waitLog(`\n  (kill -9 \d+)\n  (kill -9 \d+)\n`)[1:]
		says := map[string]string{"curl http": `"content"`, "curl --silent": `hivenet_site_pending_demand{model="smollm2"} 0`, "bin/holdgate status": "/1/admin.sock", "bin/holdgate map push": "generation 1", "bin/holdgate map get": `"smollm2"`}
		ran := 0
		for line := range strings.Lines(text) {
			for begin, answer := range says {
				if strings.HasPrefix(line, "  "+begin) {
					require.Contains(t, shell(t, line), answer, line)
					ran++
				}
			}
		}
		require.Equal(t, 7, ran, text)
		for _, line := range kills {
			shell(t, line)
		}
		p.waitLog("router 1 runs again")
		p.waitLog("Valkey runs again")
		all := children(t, p.cmd.Process.Pid, "")
		require.NoError(t, p.cmd.Process.Signal(syscall.SIGINT))
		require.NoError(t, p.ends())
		gone(t, all)
	})
}

// shell runs a line that an example prints, and returns its output.
func shell(t *testing.T, line string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	cmd.Dir = root(t)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s: %s", line, out)
	return string(out)
}
