// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/admin"
)

// TestLlamaCppIsAskedForItsModelsAndHowBusyItIs uses a real llama.cpp with two slots.
// The agent has only its address and name.
func TestLlamaCppIsAskedForItsModelsAndHowBusyItIs(t *testing.T) {
	cases := map[string]struct {
		flags      []string
		idle, busy string // the signals
	}{
		"with metrics": {[]string{"--metrics"}, `{"in_flight":0,"running":0,"waiting":0}`, `{"in_flight":3,"running":2,"waiting":1}`},
		"with slots":   {nil, `{"running":0}`, `{"running":2}`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := startSite(t, "--agent-liveness", "1500ms")
			address := closedPort(t)
			_, port, err := net.SplitHostPort(address)
			require.NoError(t, err)
			startProgram(t, python(t), append([]string{"tools/llama_server.py", "--port", port, "--alias", "m"}, tc.flags...)...)
			a := start(t, "agent", "--router", s.app.AgentsAddr(), "--engine", "llamacpp", "--backend-url", "http://"+address, "--capacity", "4", "--warmup")
			a.waitLog(`the engine named its models.*kinds=\["chat"\].*models=\["m"\]`)
			s.waitSignals(t, tc.idle)

			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var answers []<-chan result
			for range 3 {
				answers = append(answers, s.start(ctx, chatPath,
					`{"model":"m","max_tokens":900,"ignore_eos":true,"messages":[{"role":"user","content":"Count to one hundred."}]}`))
			}
			s.waitSignals(t, tc.busy)
			cancel()
			for _, answer := range answers {
				<-answer
			}
			s.waitSignals(t, tc.idle)
			require.Equal(t, http.StatusOK, s.post(chatPath, `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"Hi"}]}`).status)
		})
	}
}

// waitSignals waits until the status has these signals of the only agent.
func (s *site) waitSignals(t *testing.T, signals string) {
	t.Helper()
	s.eventually(signals, func() bool {
		var status admin.Status
		require.NoError(t, json.NewDecoder(strings.NewReader(s.command("status", "--json"))).Decode(&status))
		if len(status.Agents) != 1 {
			return false
		}
		text, err := json.Marshal(status.Agents[0].Signals)
		require.NoError(t, err)
		return string(text) == signals
	})
}
