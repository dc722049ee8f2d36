// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/certs/certstest"
)

// mutualTLSFlags returns the flags with which a router and an agent authenticate each
// other, and use a token.
func mutualTLSFlags(t *testing.T) (router, agent []string) {
	t.Helper()
	sites, agents := certstest.New(t), certstest.New(t)
	siteCert, siteKey := sites.Issue()
	agentCert, agentKey := agents.Issue()
	tokens, token := filepath.Join(t.TempDir(), "tokens"), filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(tokens, []byte("last-years\nthis-years\n"), 0o600))
	require.NoError(t, os.WriteFile(token, []byte("this-years\n"), 0o600))
	return []string{
		"--agents-tls-cert-file", siteCert, "--agents-tls-key-file", siteKey,
		"--agents-client-ca-file", agents.File, "--agents-token-file", tokens,
	}, []string{
		"--tls-ca-file", sites.File, "--tls-cert-file", agentCert, "--tls-key-file", agentKey, "--token-file", token,
	}
}

// stream requests a long answer and returns the rest of it, once it has begun.
func (s *site) stream(model string) io.Reader {
	s.t.Helper()
	r := s.request(s.t.Context(), http.MethodPost, chatPath,
		`{"model":"`+model+`","stream":true,"max_tokens":200,"temperature":0,"messages":[{"role":"user","content":"Count from one to one hundred."}]}`)
	resp, err := s.http.Do(r)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = resp.Body.Close() })
	require.Equal(s.t, http.StatusOK, resp.StatusCode)
	body := bufio.NewReader(resp.Body)
	for {
		line, err := body.ReadString('\n')
		require.NoError(s.t, err)
		if strings.HasPrefix(line, "data: ") {
			return body
		}
	}
}

// SIGTERM of an agent, which is set up as if the router were remote, leaves running
// answers complete, both those that Envoy carries and relayed ones.
func TestAnswersOutliveTheSIGTERMOfTheirAgent(t *testing.T) {
	router, flags := mutualTLSFlags(t)
	s := startSite(t, router...)
	address := closedPort(t)
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	p := start(t, append([]string{
		"agent", "--router", s.app.AgentsAddr(), "--engine", "llamacpp", "--backend-url", "http://" + address,
		"--model", "m", "--capability", "llm", "--capacity", "2",
		"--exec", python(t) + " tools/llama_server.py --port " + port,
	}, flags...)...)
	p.waitLog("registered with the router")
	relayed := s.stream("m")
	native := s.stream("m")
	engine := onlyChild(t, p.cmd.Process.Pid, "llama_server.py")

	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	s.eventually("the router knows", func() bool { return strings.Contains(s.log.String(), "agent is leaving") })
	ctx, giveUp := context.WithCancel(t.Context())
	held := s.start(ctx, chatPath, chatBody("m", false))
	s.metric(`hivenet_pending_demand{model="m"}`, "1")
	giveUp()
	require.Error(t, (<-held).err)
	require.Equal(t, engine, onlyChild(t, p.cmd.Process.Pid, "llama_server.py"))

	for name, answer := range map[string]io.Reader{"relayed": relayed, "native": native} {
		rest, err := io.ReadAll(answer)
		require.NoError(t, err, name)
		require.Contains(t, string(rest), "data: [DONE]", name)
	}
	require.NoError(t, p.ends())
	gone(t, []int{engine})
	s.eventually("it has left", func() bool { return strings.Contains(s.log.String(), "sent Bye") })
	require.NotContains(t, s.log.String()+p.out.String(), "this-years")
	s.atRest()
}
