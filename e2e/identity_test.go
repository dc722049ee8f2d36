// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"slices"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	jwtauthnv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/holdgate/holdgate/envoy"
)

const issuer = "https://issuer.example"

// identityMetadata is where jwt_authn puts the claims of a token.
const identityMetadata = "envoy.filters.http.jwt_authn/claims"

// jwtAuthn returns a filter that accepts tokens signed by key. A request without a
// valid token continues without claims.
func jwtAuthn(t *testing.T, key *ecdsa.PrivateKey) *hcmv3.HttpFilter {
	t.Helper()
	point, err := key.PublicKey.Bytes()
	require.NoError(t, err)
	at := func(from, to int) string { return base64.RawURLEncoding.EncodeToString(point[from:to]) }
	config, err := anypb.New(&jwtauthnv3.JwtAuthentication{
		Providers: map[string]*jwtauthnv3.JwtProvider{"idp": {
			Issuer: issuer, PayloadInMetadata: "claims",
			JwksSourceSpecifier: &jwtauthnv3.JwtProvider_LocalJwks{LocalJwks: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{
				InlineString: fmt.Sprintf(`{"keys":[{"kty":"EC","crv":"P-256","alg":"ES256","x":%q,"y":%q}]}`, at(1, 33), at(33, 65)),
			}}},
		}},
		Rules: []*jwtauthnv3.RequirementRule{{
			Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
			RequirementType: &jwtauthnv3.RequirementRule_Requires{Requires: &jwtauthnv3.JwtRequirement{
				RequiresType: &jwtauthnv3.JwtRequirement_RequiresAny{RequiresAny: &jwtauthnv3.JwtRequirementOrList{Requirements: []*jwtauthnv3.JwtRequirement{
					{RequiresType: &jwtauthnv3.JwtRequirement_ProviderName{ProviderName: "idp"}},
					{RequiresType: &jwtauthnv3.JwtRequirement_AllowMissingOrFailed{AllowMissingOrFailed: &emptypb.Empty{}}},
				}}},
			}},
		}},
	})
	require.NoError(t, err)
	return &hcmv3.HttpFilter{Name: "envoy.filters.http.jwt_authn", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: config}}
}

// insertFilter puts a filter before all others of the edge.
func insertFilter(t *testing.T, b *bootstrapv3.Bootstrap, filter *hcmv3.HttpFilter) {
	t.Helper()
	chain := b.GetStaticResources().GetListeners()[0].GetFilterChains()[0].GetFilters()[0]
	manager := &hcmv3.HttpConnectionManager{}
	require.NoError(t, chain.GetTypedConfig().UnmarshalTo(manager))
	manager.HttpFilters = slices.Insert(manager.GetHttpFilters(), 0, filter)
	require.NoError(t, chain.GetTypedConfig().MarshalFrom(manager))
}

// startWithJWT starts a site whose Envoy has a jwt_authn filter before ext_proc.
func startWithJWT(t *testing.T, key *ecdsa.PrivateKey, flags ...string) *site {
	t.Helper()
	return startFiltered(t, identityMetadata, func(b *bootstrapv3.Bootstrap) { insertFilter(t, b, jwtAuthn(t, key)) }, flags...)
}

// startFiltered starts a site whose Envoy is modified by change, and which finds
// identities at a place in its metadata.
func startFiltered(t *testing.T, identity string, change func(*bootstrapv3.Bootstrap), flags ...string) *site {
	t.Helper()
	dir, err := os.MkdirTemp("", "hg")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &site{t: t, log: &buffer{}, http: newHTTPClient(t), audit: dir + "/audit.log"}
	s.startApp(dir, append(flags, "--identity-metadata", identity, "--audit-file", s.audit))
	bin, err := envoy.Find(t.Context())
	require.NoError(t, err)
	b, err := envoy.Render(envoy.Config{EdgeListen: "127.0.0.1:0", LanesDir: dir, IdentityMetadata: identity})
	require.NoError(t, err)
	change(b)
	require.Empty(t, envoy.Check(envoy.SetupOf(b), envoy.CheckOptions{Budget: time.Minute, IdentityMetadata: identity}).Findings)
	text, err := envoy.YAML(b)
	require.NoError(t, err)
	s.envoy, err = bin.Start(context.Background(), envoy.Options{Bootstrap: text, Dir: dir, Concurrency: 1, Log: s.log})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.envoy.Stop(5*time.Second)) })
	s.url = "http://" + s.envoy.EdgeAddr()
	require.Equal(t, http.StatusOK, s.putMap(testMap).status)
	return s
}

func newTokenKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return key
}

// bearer returns an Authorization header with a signed token.
func bearer(t *testing.T, key *ecdsa.PrivateKey, claims jwt.MapClaims) string {
	t.Helper()
	claims["iss"], claims["exp"] = issuer, time.Now().Add(time.Hour).Unix()
	token, err := jwt.NewWithClaims(jwt.SigningMethodES256, claims).SignedString(key)
	require.NoError(t, err)
	return "Bearer " + token
}

func TestATokenThatEnvoyCheckedIsAnIdentity(t *testing.T) {
	key := newTokenKey(t)
	s := startWithJWT(t, key)
	e := newEngine(t, nil)
	good := bearer(t, key, jwt.MapClaims{"tenant": "acme", "key_id": "user-1", "models": []string{"m"}})

	// Held, relayed, and then served natively in many chunks, each with the metadata.
	id := uuid.NewString()
	held := s.start(t.Context(), chatPath, chatBody("m", false), "Authorization", good, "X-Request-Id", id)
	s.metric(`hivenet_pending_demand{model="m"}`, "1")
	a := s.register(hello("a", e.addr(), 4, "m", "short"))
	require.Equal(t, http.StatusOK, (<-held).status)
	requireFields(t, s.recordOf(id), map[string]any{"tenant_id": "acme", "key_id": "user-1", "decision": "hold"})
	id = uuid.NewString()
	body := bigBody("m", 300<<10)
	require.Equal(t, http.StatusOK, s.post(chatPath, body, "Authorization", good, "X-Request-Id", id).status)
	requireFields(t, s.recordOf(id), map[string]any{"tenant_id": "acme", "key_id": "user-1", "decision": "serve", "status": 200})
	_, sent := e.last()
	require.Equal(t, body, sent)
	require.Empty(t, keysOf(e), "the token is not the engine's business")
	s.metric(`hivenet_routing_requests_routed_total{engine="custom",model="m",region="test",tenant_id="acme"}`, "2")

	require.Contains(t, s.post(chatPath, chatBody("short", false), "Authorization", good).body, `"code":"model_forbidden"`)
	models := s.do(s.request(t.Context(), http.MethodGet, "/v1/models", "", "Authorization", good))
	require.Contains(t, models.body, `"id":"m"`)
	require.NotContains(t, models.body, `"id":"short"`)

	// The rehold lane does not authenticate again.
	a.leave()
	s.register(hello("gone", closedPort(t), 4, "m"))
	id = uuid.NewString()
	held = s.start(t.Context(), chatPath, chatBody("m", false), "Authorization", good, "X-Request-Id", id)
	s.metric(`hivenet_pending_demand{model="m"}`, "1")
	s.register(hello("b", e.addr(), 4, "m"))
	require.Equal(t, http.StatusOK, (<-held).status)
	requireFields(t, s.recordOf(id), map[string]any{"tenant_id": "acme", "key_id": "user-1"})
	s.atRest()
}

// Only tokens that Envoy has checked count.
func TestAnIdentityCannotBeForged(t *testing.T) {
	key := newTokenKey(t)
	s := startWithJWT(t, key)
	s.register(hello("a", newEngine(t, nil).addr(), 4, "m"))
	for name, headers := range map[string][]string{
		"no token":                 nil,
		"another key":              {"Authorization", bearer(t, newTokenKey(t), jwt.MapClaims{"tenant": "acme"})},
		"no tenant":                {"Authorization", bearer(t, key, jwt.MapClaims{"key_id": "user-1"})},
		"a tenant that is no text": {"Authorization", bearer(t, key, jwt.MapClaims{"tenant": 7})},
		"headers": {
			"Tenant", "acme", "X-Holdgate-Tenant", "acme", "X-Jwt-Payload", "eyJ0ZW5hbnQiOiJhY21lIn0", "Envoy.filters.http.jwt_authn", "acme",
			"X-Holdgate-Lane", "rehold", "X-Holdgate-Failed", "127.0.0.1:1;sent=0",
		},
	} {
		r := s.post(chatPath, chatBody("m", false), headers...)
		require.Equal(t, http.StatusUnauthorized, r.status, name)
		require.Contains(t, r.body, `"code":"unauthorized"`, name)
	}
	require.Equal(t, http.StatusOK, s.post(chatPath, chatBody("m", false), "Authorization", bearer(t, key, jwt.MapClaims{"tenant": "acme"})).status)
	s.atRest()
}

func TestAKeyCountsWhereThereIsNoIdentity(t *testing.T) {
	key := newTokenKey(t)
	s := startWithJWT(t, key, "--auth-file", keysFile(t, "  quota: {requests_per_minute: 2}\n"))
	s.register(hello("a", newEngine(t, nil).addr(), 4, "m"))
	id := uuid.NewString()
	r := s.post(chatPath, chatBody("m", false), "Authorization", "Bearer "+apiKey, "X-Request-Id", id)
	require.Equal(t, http.StatusOK, r.status, r.body)
	requireFields(t, s.recordOf(id), map[string]any{"tenant_id": "acme", "key_id": "acme-prod"})
	require.Equal(t, http.StatusUnauthorized, s.post(chatPath, chatBody("m", false)).status)

	// An identity with the id of the key has its quota, of which one request is left.
	both := []string{"Authorization", bearer(t, key, jwt.MapClaims{"tenant": "other", "key_id": "acme-prod"}), "X-Api-Key", apiKey}
	id = uuid.NewString()
	r = s.post(chatPath, chatBody("m", false), append(both, "X-Request-Id", id)...)
	require.Equal(t, http.StatusOK, r.status, r.body)
	require.Equal(t, "0", r.header.Get("X-Ratelimit-Remaining-Requests"))
	requireFields(t, s.recordOf(id), map[string]any{"tenant_id": "other", "key_id": "acme-prod"})
	require.Equal(t, http.StatusTooManyRequests, s.post(chatPath, chatBody("m", false), both...).status)
	s.atRest()
}
