// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// sleeper starts `holdgate agent` for the model m, whose real engine listens on address
// while it is awake.
func sleeper(t *testing.T, router, address string) *process {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	return start(t, "agent", "--router", router, "--id", "a", "--engine", "llamacpp", "--backend-url", "http://"+address,
		"--model", "m", "--exec", fmt.Sprintf("%s tools/llama_server.py --port %s", python(t), port))
}

const shortChat = `{"model":"m","max_tokens":8,"messages":[{"role":"user","content":"hi"}]}`

func TestAnAgentKilledWhileItsEngineStartsCostsOnlyTime(t *testing.T) {
	s := startSite(t)
	address := closedPort(t)
	first := sleeper(t, s.app.AgentsAddr(), address)
	first.waitLog("registered with the router")
	answer := s.start(t.Context(), chatPath, shortChat)
	first.waitLog("starting the engine")
	require.NoError(t, first.cmd.Process.Kill())
	require.Error(t, first.ends())

	second := sleeper(t, s.app.AgentsAddr(), address)
	r := <-answer
	require.Equal(t, http.StatusOK, r.status, r.body)
	require.Contains(t, r.body, `"content"`)
	second.waitLog("starting the engine")
	s.atRest()
}

func TestARouterRestartedWhileAModelWakesFindsItWaking(t *testing.T) {
	dir, err := os.MkdirTemp("", "hg")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	mapFile := filepath.Join(dir, "map.json")
	require.NoError(t, os.WriteFile(mapFile, []byte(testMap), 0o600))
	serve := func() *process {
		p := start(t, "serve", "--site-id", "here", "--extproc-listen", "unix://"+dir+"/extproc.sock", "--relay", "unix://"+dir+"/relay.sock",
			"--agents-listen", "unix://"+dir+"/agents.sock", "--admin-listen", "127.0.0.1:0", "--map-file", mapFile)
		p.waitLog("holdgate is ready")
		return p
	}
	first := serve()
	s := &site{t: t, url: "http://" + startEnvoy(t, dir, &buffer{}).EdgeAddr(), http: newHTTPClient(t)}
	agent := sleeper(t, "unix://"+dir+"/agents.sock", closedPort(t))
	first.waitLog("agent registered")
	lost := s.start(t.Context(), chatPath, shortChat)
	agent.waitLog("starting the engine")
	require.NoError(t, first.cmd.Process.Kill())
	require.Error(t, first.ends())
	r := <-lost
	require.Equal(t, http.StatusServiceUnavailable, r.status)
	require.Contains(t, r.body, `"code":"router_unavailable"`)

	second := serve()
	r = s.post(chatPath, shortChat)
	require.Equal(t, http.StatusOK, r.status, r.body)
	second.waitLog(`"state":"(waking|serving)".*"agent registered"`)
	require.Equal(t, 1, strings.Count(agent.out.String(), "starting the engine"))
}
