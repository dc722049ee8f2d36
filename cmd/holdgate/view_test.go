// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json/v2"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/admin"
	"github.com/holdgate/holdgate/internal/events"
	"github.com/holdgate/holdgate/internal/local"
	"github.com/holdgate/holdgate/internal/polltest"
	"github.com/holdgate/holdgate/sitemap"
)

func serving(s *admin.Status) admin.Deps {
	return admin.Deps{Status: func() *admin.Status { return s }}
}

func TestHoldsShowWhoWaits(t *testing.T) {
	t.Parallel()
	out, err := runAgainst(t, serving(&admin.Status{}), "holds")
	require.NoError(t, err)
	require.Equal(t, "no request waits\n", out)
	since := time.Now().Add(-time.Minute)
	s := &admin.Status{
		Waiting: []admin.WaitStatus{
			{Model: "m", Kind: "chat", KeyID: "batch", Tenant: "acme", Requests: 3, Held: 2, Since: since},
			{Model: "a\tb\x1b[31m", Kind: "chat", Tenant: "default", Requests: 1, Held: 1, Since: since},
		},
		WaitingMore: 4,
		HoldTimes:   []admin.HoldTime{{UpTo: 2.5, Requests: 3}, {UpTo: 60, Requests: 0}, {Requests: 1}},
	}
	out, err = runAgainst(t, serving(s), "holds")
	require.NoError(t, err)
	require.Equal(t, `KEY    TENANT   MODEL              KIND  REQUESTS  HELD  OLDEST
batch  acme     m                  chat  3         2     1m0s
-      default  a\u{9}b\u{1b}[31m  chat  1         1     1m0s
and 4 requests of other keys

HELD FOR     REQUESTS  
up to 2.5 s  3         
up to 60 s   0         
over 60 s    1         
`, out)
	out, err = runAgainst(t, serving(s), "holds", "-o", "json")
	require.NoError(t, err)
	var back admin.Status
	require.NoError(t, json.Unmarshal([]byte(out), &back))
	require.Equal(t, s.Waiting[1].Model, back.Waiting[1].Model)
	require.NotContains(t, out, "\x1b")
}

func TestAgentsAloneAreShown(t *testing.T) {
	t.Parallel()
	out, err := runAgainst(t, serving(&admin.Status{}), "agents")
	require.NoError(t, err)
	require.Equal(t, "no agent is registered\n", out)
	out, err = runAgainst(t, serving(&admin.Status{
		Agents: []admin.AgentStatus{{ID: "gpu\u202e0", State: "serving", Healthy: true, Slots: 8, InFlight: 2, Models: []string{"m"}}},
	}), "agents")
	require.NoError(t, err)
	require.Contains(t, out, `gpu\u{202e}0  serving  no       2/8`)
	require.True(t, strings.HasPrefix(out, "AGENT"), out)
}

// A terminal gets bars and colors; a file, a pipe and TERM=dumb do not, and NO_COLOR keeps the
// bars.
func TestBarsAndColorsAreForTerminals(t *testing.T) {
	t.Parallel()
	s := &admin.Status{
		Models: []admin.ModelStatus{
			{Model: "m\uE001", State: "waking", WakingSince: time.Now().Add(-30 * time.Second), WakeSeconds: 60}, {Model: "n", State: "warm"},
		},
		Agents: []admin.AgentStatus{{ID: "a", State: "serving", Slots: 4, InFlight: 1}},
	}
	show := func(screen screen) string {
		var out bytes.Buffer
		screen.out = &out
		printStatus(&screen, s)
		return out.String()
	}
	plain := show(screen{})
	require.NotContains(t, plain, "\x1b")
	require.NotContains(t, plain, "█")
	require.Contains(t, plain, "starting for 30s of about 1m0s")
	bars := show(screen{bars: true})
	require.NotContains(t, bars, "\x1b")
	require.Contains(t, bars, "██████████░░░░░░░░░░ starting for 30s")
	require.Contains(t, bars, "█████░░░░░░░░░░░░░░░ 1/4")
	colors := show(screen{bars: true, colors: true})
	require.Contains(t, colors, "\x1b[33mwaking\x1b[0m")
	require.Contains(t, colors, "\x1b[32mwarm\x1b[0m  ")
	require.Contains(t, colors, `m\u{e001}`, "a name has no color")
	require.False(t, newScreen(&bytes.Buffer{}).bars)
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	require.NoError(t, err)
	require.False(t, newScreen(file).bars)
	require.NoError(t, file.Close())
}

func TestAnUnknownOutputIsAUsageError(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"status", "holds", "agents", "events", "explain --model m"} {
		_, err := runAgainst(t, serving(&admin.Status{}), append(strings.Fields(command), "-o", "yaml")...)
		require.ErrorContains(t, err, `--output: "yaml" is not known: use table or json`)
		require.Equal(t, 2, exitCode(err))
	}
}

// A watch goes on when the router does not answer, and ends with the command.
func TestAWatchGoesOn(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	d := admin.Deps{
		Maps: sitemap.NewStore("here", nil), Metrics: prometheus.NewRegistry(), Log: zerolog.Nop(),
		Status: func() *admin.Status {
			calls.Add(1)
			return &admin.Status{Ready: true, InFlight: int(calls.Load())}
		},
	}
	server := httptest.NewServer(admin.Handler(d))
	defer server.Close()
	flags := &viewFlags{url: server.URL, output: "json", watch: true, every: time.Millisecond}
	var out bytes.Buffer
	cmd := newStatusCommand()
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	ctx, cancel := context.WithCancel(t.Context())
	cmd.SetContext(ctx)
	done := make(chan error)
	go func() { done <- show(cmd, flags, statusCall(), printStatus) }()
	polltest.Until(t, "it asks again", func() bool { return calls.Load() > 2 })
	server.Close()
	cancel()
	require.NoError(t, <-done)
	lines := strings.Split(out.String(), "\n")
	require.Contains(t, lines[1], `"in_flight":2`, "one line each")
	_, err := runAgainst(t, admin.Deps{}, "status", "--watch") // no such path: the first call may fail
	require.Error(t, err)
	require.Equal(t, 1, exitCode(err))
}

func TestEventsArePrinted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		at := now.Local().Format(time.TimeOnly)
		for want, e := range map[string]events.Event{
			"held       m chat":                             {Type: events.Held, Model: "m", Kind: "chat"},
			"refused    m\\u{a}x\\u{1b} chat 404 not_found": {Type: events.Refused, Model: "m\nx\x1b", Kind: "chat", Status: 404, Reason: "not_found"},
			"redirected m chat to b":                        {Type: events.Redirected, Model: "m", Kind: "chat", Site: "b"},
			"released   m chat 2 requests":                  {Type: events.Released, Model: "m", Kind: "chat", Requests: 2},
			"failed     m no GPU":                           {Type: events.Failed, Model: "m", Reason: "no GPU"},
			"lost       7 events too slow":                  {Type: events.Lost, Events: 7, Reason: "too slow"},
		} {
			e.Time = now
			data, err := json.Marshal(e)
			require.NoError(t, err)
			var out bytes.Buffer
			require.NoError(t, printEvent(newScreen(&out), data, false))
			require.Equal(t, at+" "+want+"\n", out.String())
			out.Reset()
			require.NoError(t, printEvent(newScreen(&out), data, true))
			require.Equal(t, 1, strings.Count(out.String(), "\n"))
		}
	})
}

func TestEventsAreFollowed(t *testing.T) {
	t.Parallel()
	log := events.NewLog()
	s := httptest.NewServer(admin.Handler(admin.Deps{
		Maps: sitemap.NewStore("here", nil), Metrics: prometheus.NewRegistry(), Log: zerolog.Nop(), Events: log,
	}))
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, done := make(chan string), make(chan error)
	cmd := newRootCommand()
	cmd.SetOut(lineWriter(out))
	cmd.SetArgs([]string{"events", "--admin", s.URL})
	go func() { done <- cmd.ExecuteContext(ctx) }()
	polltest.Until(t, "it reads", func() bool { return log.Readers() == 1 })
	log.Add(events.Event{Type: events.Awake, Model: "m"})
	require.Contains(t, <-out, "awake      m")
	cancel()
	require.NoError(t, <-done, "the end of the command is no error")
	_, err := runAgainst(t, admin.Deps{Events: log, Tokens: []string{"t"}}, "events")
	require.ErrorContains(t, err, "this call needs the token")
	require.Equal(t, 1, exitCode(err))
}

type lineWriter chan<- string

func (w lineWriter) Write(p []byte) (int, error) {
	w <- string(p)
	return len(p), nil
}

// The routers of this user are found without --admin.
func TestTheRouterOfThisMachineIsFound(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	f := &adminFlags{}
	address, err := f.address()
	require.NoError(t, err)
	require.Equal(t, usualAdmin, address)
	one, err := local.Announce("http://127.0.0.1:1")
	require.NoError(t, err)
	address, err = f.address()
	require.NoError(t, err)
	require.Equal(t, "http://127.0.0.1:1", address)
	two, err := local.Announce("unix:///run/h.sock")
	require.NoError(t, err)
	_, err = f.address()
	require.EqualError(t, err, "several routers run here: choose one with --admin: http://127.0.0.1:1, unix:///run/h.sock")
	require.Equal(t, 2, exitCode(err))
	given := &adminFlags{url: "http://other"}
	address, err = given.address()
	require.NoError(t, err)
	require.Equal(t, "http://other", address)
	one.Close()
	two.Close()
	require.NoError(t, os.Symlink("/dev/null", filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "holdgate", "router-x.json")))
	_, err = f.address()
	require.ErrorContains(t, err, "is not used")
}

func TestTheURLOfAnAdminAPIIsOneThatThisMachineCanCall(t *testing.T) {
	t.Parallel()
	for _, c := range [][3]string{
		{"127.0.0.1:0", "127.0.0.1:4000", "http://127.0.0.1:4000"},
		{"0.0.0.0:9003", "0.0.0.0:9003", "http://127.0.0.1:9003"},
		{":9003", "[::]:9003", "http://[::1]:9003"},
		{"unix:///run/a.sock", "/run/a.sock", "unix:///run/a.sock"},
		{"[::1]:1", "[::1]:1", "http://[::1]:1"},
	} {
		require.Equal(t, c[2], adminURL(c[0], c[1]))
	}
}

func TestModelsAreCompleted(t *testing.T) {
	t.Parallel()
	d := serving(&admin.Status{Models: []admin.ModelStatus{{Model: "llama"}, {Model: "qwen"}}})
	for _, args := range [][]string{{"__complete", "wake"}, {"__complete", "explain", "--model"}} {
		d.Maps, d.Metrics, d.Log = sitemap.NewStore("here", nil), prometheus.NewRegistry(), zerolog.Nop()
		s := httptest.NewServer(admin.Handler(d))
		var out bytes.Buffer
		cmd := newRootCommand()
		cmd.SetOut(&out)
		cmd.SetErr(&bytes.Buffer{})
		at := len(args) - 1
		if args[at] == "wake" {
			at++
		}
		cmd.SetArgs(append(append(append([]string{}, args[:at]...), "--admin", s.URL), append(args[at:], "")...))
		require.NoError(t, cmd.ExecuteContext(t.Context()))
		require.Contains(t, out.String(), "llama\nqwen\n")
		s.Close()
	}
}
