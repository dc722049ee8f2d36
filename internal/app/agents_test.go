// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/internal/certs"
	"github.com/holdgate/holdgate/internal/certs/certstest"
)

// secureApp is a started app whose ports have certificates of an authority, and whose agents
// need a token of a file.
type secureApp struct {
	*App
	t               *testing.T
	authority       *certstest.Authority
	cert, key       string
	tokens          string
	trusted, client *certstest.Authority
}

func startSecure(t *testing.T, args ...string) *secureApp {
	t.Helper()
	dir := t.TempDir()
	a := certstest.New(t)
	s := &secureApp{t: t, authority: a, trusted: a, tokens: filepath.Join(dir, "tokens")}
	s.cert, s.key = a.Issue()
	s.setTokens("old\n")
	s.App = newApp(t, append([]string{
		"--extproc-listen=unix://" + dir + "/e.sock", "--admin-listen=127.0.0.1:0", "--agents-listen=127.0.0.1:0",
		"--agents-tls-cert-file=" + s.cert, "--agents-tls-key-file=" + s.key, "--agents-token-file=" + s.tokens,
		"--keda-listen=127.0.0.1:0", "--keda-tls-cert-file=" + s.cert, "--keda-tls-key-file=" + s.key,
	}, args...)...)
	require.NoError(t, s.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, s.Stop(context.Background())) })
	return s
}

func (s *secureApp) setTokens(text string) {
	s.t.Helper()
	require.NoError(s.t, os.WriteFile(s.tokens, []byte(text), 0o600))
}

// dial makes a new connection as a client that trusts one authority and has a certificate of
// another, or none.
func (s *secureApp) dial(address string) *grpc.ClientConn {
	s.t.Helper()
	text, err := os.ReadFile(s.trusted.File)
	require.NoError(s.t, err)
	c := &tls.Config{MinVersion: tls.VersionTLS13}
	c.RootCAs, err = certs.Authorities(text)
	require.NoError(s.t, err)
	if s.client != nil {
		pair, err := tls.LoadX509KeyPair(s.client.Issue())
		require.NoError(s.t, err)
		c.Certificates = []tls.Certificate{pair}
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(c)))
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// register returns why an agent with a token, or none, is refused; OK when it is not.
func (s *secureApp) register(token string) codes.Code {
	s.t.Helper()
	ctx := s.t.Context()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	st, err := agentregpb.NewAgentRegistryClient(s.dial(s.AgentsAddr())).Connect(ctx)
	if err != nil {
		return status.Code(err)
	}
	_ = st.Send(&agentregpb.AgentMessage{Message: &agentregpb.AgentMessage_Hello{Hello: &agentregpb.Hello{
		AgentId: "a", Instance: uuid.NewString(), Address: "127.0.0.1:8000", Models: []string{"m"}, Kinds: []string{"chat"},
		Slots: 1, Engine: "custom", State: agentregpb.State_STATE_SERVING,
	}}}) // Recv says why it fails
	_, err = st.Recv()
	return status.Code(err)
}

func TestHealthIsOpenAndTheRestNeedsAToken(t *testing.T) {
	t.Parallel()
	s := startSecure(t, "--agents-reflection")
	require.Equal(t, codes.OK, s.register("old"))
	require.Equal(t, codes.Unauthenticated, s.register("guess"))
	require.Equal(t, codes.Unauthenticated, s.register(""))

	for address, service := range map[string]string{
		s.AgentsAddr(): "agentreg.v1.AgentRegistry", s.Addresses()["keda"]: "externalscaler.ExternalScaler",
	} {
		client := healthpb.NewHealthClient(s.dial(address))
		for _, name := range []string{"", service} {
			r, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: name})
			require.NoError(t, err)
			require.Equal(t, healthpb.HealthCheckResponse_SERVING, r.GetStatus())
			watch, err := client.Watch(t.Context(), &healthpb.HealthCheckRequest{Service: name})
			require.NoError(t, err)
			r, err = watch.Recv()
			require.NoError(t, err)
			require.Equal(t, healthpb.HealthCheckResponse_SERVING, r.GetStatus())
		}
	}

	reflected := func(ctx context.Context, s *secureApp) error {
		st, err := reflectionpb.NewServerReflectionClient(s.dial(s.AgentsAddr())).ServerReflectionInfo(ctx)
		require.NoError(t, err)
		_ = st.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
		_, err = st.Recv()
		return err
	}
	with := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer old")
	require.NoError(t, reflected(with, s))
	require.Equal(t, codes.Unauthenticated, status.Code(reflected(t.Context(), s)))
	require.Equal(t, codes.Unimplemented, status.Code(reflected(with, startSecure(t))))
}

func TestARefusedAgentIsLogged(t *testing.T) {
	t.Parallel()
	a := newApp(t, "--agents-token-file", temporary(t, "good\n"))
	var out bytes.Buffer
	a.log = zerolog.New(zerolog.SyncWriter(&out))
	server, err := a.newAgentServer(nil)
	require.NoError(t, err)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = server.Serve(l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	with := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer guess")
	for i := range 40 {
		ctx := with
		if i == 0 {
			ctx = t.Context()
		}
		st, err := agentregpb.NewAgentRegistryClient(conn).Connect(ctx)
		require.NoError(t, err)
		_, err = st.Recv()
		require.Equal(t, codes.Unauthenticated, status.Code(err))
	}
	server.Stop()
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Regexp(t, `^{"level":"warn","cause":"the token is missing \(--token-file\)","peer":"127.0.0.1:\d+","message":"agent refused"}$`, lines[0])
	require.Contains(t, lines[1], `"the token is unknown (--token-file)"`)
	require.NotContains(t, out.String(), "guess")
	require.Less(t, len(lines), 40, "anybody could fill the log")
}

func TestHealthSaysThatTheRouterDrains(t *testing.T) {
	t.Parallel()
	a := newApp(t, "--extproc-listen=unix://"+t.TempDir()+"/e.sock", "--admin-listen=127.0.0.1:0", "--agents-listen=127.0.0.1:0")
	require.NoError(t, a.Start(t.Context()))
	require.NoError(t, a.Stop(t.Context()))
	for _, name := range []string{"", "agentreg.v1.AgentRegistry"} {
		r, err := a.health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: name})
		require.NoError(t, err)
		require.Equal(t, healthpb.HealthCheckResponse_NOT_SERVING, r.GetStatus())
	}
}

func TestTokensAreReplacedWithoutARestart(t *testing.T) {
	t.Parallel()
	s := startSecure(t)
	s.setTokens("old\nnew\n")
	require.NoError(t, s.Reload())
	require.Equal(t, codes.OK, s.register("old"))
	require.Equal(t, codes.OK, s.register("new"))
	s.setTokens("new\n")
	require.NoError(t, s.Reload())
	require.Equal(t, codes.Unauthenticated, s.register("old"))
	require.Equal(t, codes.OK, s.register("new"))
	s.setTokens("# none\n")
	require.ErrorContains(t, s.Reload(), "--agents-token-file")
	require.Equal(t, codes.OK, s.register("new"), "nobody is let in by an empty file, and nobody out")
	require.Equal(t, codes.Unauthenticated, s.register(""))

	require.NoError(t, os.Remove(s.cert))
	s.setTokens("newest\n")
	require.ErrorContains(t, s.Reload(), "--agents-tls-cert-file")
	require.Equal(t, codes.OK, s.register("newest"), "a bad file keeps no other from being read")
}

func TestCertificatesAreReplacedWithoutARestart(t *testing.T) {
	t.Parallel()
	s := startSecure(t)
	require.Equal(t, codes.OK, s.register("old"))
	s.trusted = certstest.New(t)
	require.Equal(t, codes.Unavailable, s.register("old"))
	s.trusted.IssueTo(s.cert, s.key)
	require.NoError(t, s.Reload())
	require.Equal(t, codes.OK, s.register("old"))
	_, err := healthpb.NewHealthClient(s.dial(s.Addresses()["keda"])).Check(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err, "KEDA's port as well")
}

func TestMutualTLSTakesThePlaceOfATokenOrStandsBesideIt(t *testing.T) {
	t.Parallel()
	clients := certstest.New(t)
	for name, c := range map[string]struct {
		args    []string
		mine    *certstest.Authority
		token   string
		outcome codes.Code
	}{
		"certificate":                   {[]string{"--agents-token-file="}, clients, "", codes.OK},
		"no certificate":                {[]string{"--agents-token-file="}, nil, "", codes.Unavailable},
		"another's":                     {[]string{"--agents-token-file="}, certstest.New(t), "", codes.Unavailable},
		"certificate and token":         {nil, clients, "old", codes.OK},
		"certificate without its token": {nil, clients, "", codes.Unauthenticated},
		"token without certificate":     {nil, nil, "old", codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startSecure(t, append(c.args, "--agents-client-ca-file="+clients.File)...)
			s.client = c.mine
			require.Equal(t, c.outcome, s.register(c.token))
		})
	}
}
