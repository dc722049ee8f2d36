// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/holdgate/holdgate/envoy"
)

// exactSizes are around the sizes at which frames, chunks and buffers end.
var exactSizes = []int{13, 33, 16 << 10, 64 << 10, 64<<10 + 1, 200 << 10, 1 << 20, 2 << 20}

// sendShapes sends one request of each shape and returns the answers.
func (s *site) sendShapes(path string, shapes []bodyShape, body func(int) string, headers ...string) map[bodyShape]<-chan result {
	s.t.Helper()
	clients := map[bool]*site{
		false: {t: s.t, url: s.url, http: newHTTPClient(s.t)}, true: {t: s.t, url: s.url, http: newHTTP2Client(s.t)},
	}
	answers := map[bodyShape]<-chan result{}
	for _, shape := range shapes {
		client := clients[shape.http2]
		ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
		s.t.Cleanup(cancel)
		r := client.request(ctx, http.MethodPost, path, "", append(headers, "X-Shape", shape.String())...)
		shape.shape(r, body(shape.size))
		done := make(chan result, 1)
		go func() { done <- client.do(r) }()
		answers[shape] = done
	}
	return answers
}

// requireAnswered requires that all are answered with a status.
func requireAnswered(t *testing.T, status int, answers map[bodyShape]<-chan result) {
	t.Helper()
	for shape, answer := range answers {
		r := <-answer
		require.NoError(t, r.err, shape)
		require.Equal(t, status, r.status, "%v %s", shape, r.body)
	}
}

// requireExact requires that each shape reached the engine once, byte for byte.
func requireExact(t *testing.T, e *exactEngine, shapes []bodyShape, body func(int) string) {
	t.Helper()
	requests, faults := e.taken()
	require.Empty(t, faults)
	require.Len(t, requests, len(shapes))
	got := map[string]string{}
	for _, q := range requests {
		got[q.header.Get("X-Shape")] = q.body
	}
	for _, shape := range shapes {
		sent, ok := got[shape.String()]
		require.True(t, ok, "%v did not reach the engine", shape)
		require.True(t, sent == body(shape.size), "%v: the engine got %d bytes, or other ones", shape, len(sent)) //nolint:testifylint // Equal would print megabytes
	}
}

// An engine gets each body once, whatever its size, framing, protocol, trailers and
// path: surplus bytes would be another request.
func TestAnEngineGetsEachBodyOnce(t *testing.T) {
	shapes := bodyShapes(exactSizes...)
	shapes = append(shapes, bodyShape{http2: true, size: 10 << 20, known: true, trailers: true}) // the largest
	body := func(n int) string { return paddedBody("m", n) }
	held := func(t *testing.T, headers ...string) {
		t.Helper()
		s := startSite(t)
		e := newExactEngine(t, nil)
		answers := s.sendShapes(chatPath, shapes, body, headers...)
		s.metric(`hivenet_pending_demand{model="m"}`, strconv.Itoa(len(shapes)))
		s.register(hello("a", e.addr, 8, "m"))
		requireAnswered(t, http.StatusOK, answers)
		requireExact(t, e, shapes, body)
		s.atRest()
	}
	t.Run("warm", func(t *testing.T) {
		s := startSite(t, "--queue-depth", "1000")
		e := newExactEngine(t, nil)
		s.register(hello("a", e.addr, 8, "m"))
		requireAnswered(t, http.StatusOK, s.sendShapes(chatPath, shapes, body))
		requireExact(t, e, shapes, body)

		empty := bodyShapes(0)
		requireAnswered(t, http.StatusBadRequest, s.sendShapes(chatPath, empty, func(int) string { return "" }))
		requests, _ := e.taken()
		require.Empty(t, requests, "no body, no request")
		s.atRest()
	})
	t.Run("with an alias", func(t *testing.T) {
		policy := t.TempDir() + "/policy.yaml"
		require.NoError(t, os.WriteFile(policy, []byte("models:\n  m:\n    aliases: [other-name]\n"), 0o600))
		s := startSite(t, "--queue-depth", "1000", "--policy-file", policy)
		e := newExactEngine(t, nil)
		s.register(hello("a", e.addr, 8, "m"))
		named := bodyShapes(33, 64<<10+9, 1<<20)
		requireAnswered(t, http.StatusOK, s.sendShapes(chatPath, named, func(n int) string { return paddedBody("other-name", n) }))
		requireExact(t, e, named, func(n int) string { return paddedBody("m", n-len("other-name")+len("m")) })
		s.atRest()
	})
	t.Run("held, native", func(t *testing.T) { held(t, "X-Wake-Keepalive", "off") })
	t.Run("held, relayed", func(t *testing.T) { held(t) })
	t.Run("in a gateway, without a length", func(t *testing.T) {
		e := newExactEngine(t, nil)
		s := startForeign(t, func(b *bootstrapv3.Bootstrap) { routeTo(t, b, e.addr, true) }, "--queue-depth", "1000")
		s.register(hello("a", e.addr, 100, "m")) // more slots than requests: none is freed in between
		requireAnswered(t, http.StatusOK, s.sendShapes(chatPath, shapes, body))
		requireExact(t, e, shapes, body)
	})
	t.Run("through the lane", func(t *testing.T) {
		shapes := bodyShapes(33, 64<<10+1, 1<<20)
		s := startSite(t, "--queue-depth", "1000")
		var died sync.Map
		e := newExactEngine(t, func(q *exactRequest) string {
			if _, again := died.LoadOrStore(q.header.Get("X-Shape"), true); !again {
				return "" // the first engine dies during each request
			}
			return exactOK
		})
		s.register(hello("a", e.addr, 8, "m"))
		requireAnswered(t, http.StatusOK, s.sendShapes(chatPath, shapes, body))
		requests, faults := e.taken()
		require.Empty(t, faults)
		require.Len(t, requests, 2*len(shapes))
		for _, q := range requests {
			require.True(t, q.body == body(len(q.body)) && len(q.body) > 0, q.header)
		}
		s.atRest()
	})
}

// An Envoy that this program did not configure sends everything, and a request that is
// not for an endpoint passes unchanged, byte for byte. A body with trailers would,
// depending on the route, come twice or never end: it is refused, and the server never
// gets all of it.
func TestAServerGetsEachBodyThatPassesOnce(t *testing.T) {
	for name, trailers := range map[string]bool{"as by default": false, "with trailers of HTTP/1.1": true} {
		t.Run(name, func(t *testing.T) {
			e := newExactEngine(t, nil)
			s := startForeign(t, func(b *bootstrapv3.Bootstrap) { routeTo(t, b, e.addr, trailers) })
			var pass, refused []bodyShape
			for _, shape := range bodyShapes(append([]int{0, 1}, exactSizes...)...) {
				if shape.trailers && shape.size > 0 && (trailers || shape.http2) {
					refused = append(refused, shape)
				} else {
					pass = append(pass, shape)
				}
			}
			body := func(n int) string { return strings.Repeat("x", n) }
			requireAnswered(t, http.StatusOK, s.sendShapes("/upload", pass, body))
			requireExact(t, e, pass, body)
			requireAnswered(t, http.StatusBadRequest, s.sendShapes("/upload", refused, body))
			requests, faults := e.taken()
			require.Empty(t, requests)
			for head, err := range faults {
				require.ErrorIs(t, err, io.ErrUnexpectedEOF, head)
			}
		})
	}
}

// startForeign starts a site behind an Envoy that this program did not configure, whose
// streams name no lane.
func startForeign(t *testing.T, change func(*bootstrapv3.Bootstrap), flags ...string) *site {
	t.Helper()
	dir, err := os.MkdirTemp("", "hg")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &site{t: t, log: &buffer{}, http: newHTTPClient(t)}
	s.startApp(dir, flags)
	b, err := envoy.Render(envoy.Config{EdgeListen: "127.0.0.1:0", LanesDir: dir})
	require.NoError(t, err)
	change(b)
	s.envoy = runEnvoy(t, b, dir, s.log)
	s.url = "http://" + s.envoy.EdgeAddr()
	require.Equal(t, http.StatusOK, s.putMap(testMap).status)
	return s
}

// changeEdge changes the connection manager of the edge and its ext_proc filter.
func changeEdge(t *testing.T, b *bootstrapv3.Bootstrap, change func(*hcmv3.HttpConnectionManager, *extprocv3.ExternalProcessor)) {
	t.Helper()
	chain := b.GetStaticResources().GetListeners()[0].GetFilterChains()[0].GetFilters()[0]
	manager, filter := &hcmv3.HttpConnectionManager{}, &extprocv3.ExternalProcessor{}
	require.NoError(t, chain.GetTypedConfig().UnmarshalTo(manager))
	i := slices.IndexFunc(manager.GetHttpFilters(), func(f *hcmv3.HttpFilter) bool { return f.GetTypedConfig().MessageIs(filter) })
	require.NoError(t, manager.GetHttpFilters()[i].GetTypedConfig().UnmarshalTo(filter))
	change(manager, filter)
	require.NoError(t, manager.GetHttpFilters()[i].GetTypedConfig().MarshalFrom(filter))
	require.NoError(t, chain.GetTypedConfig().MarshalFrom(manager))
}

// routeTo changes the edge as a user's own Envoy might have it: it names no lane, and
// sends everything to another server.
func routeTo(t *testing.T, b *bootstrapv3.Bootstrap, address string, trailers bool) {
	t.Helper()
	at, err := net.ResolveTCPAddr("tcp", address)
	require.NoError(t, err)
	b.StaticResources.Clusters = append(b.GetStaticResources().GetClusters(), &clusterv3.Cluster{
		Name:           "plain",
		ConnectTimeout: durationpb.New(time.Second),
		HttpProtocolOptions: &corev3.Http1ProtocolOptions{ //nolint:staticcheck // shorter than the typed options
			EnableTrailers: trailers,
		},
		LoadAssignment: &endpointv3.ClusterLoadAssignment{ClusterName: "plain", Endpoints: []*endpointv3.LocalityLbEndpoints{{
			LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
				Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
					Address: at.IP.String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(at.Port)},
				}}},
			}}}},
		}}},
	})
	changeEdge(t, b, func(m *hcmv3.HttpConnectionManager, p *extprocv3.ExternalProcessor) {
		p.GrpcService.InitialMetadata = nil
		m.HttpProtocolOptions = &corev3.Http1ProtocolOptions{EnableTrailers: trailers}
		m.GetRouteConfig().GetVirtualHosts()[0].RequestHeadersToAdd = nil
		for _, route := range m.GetRouteConfig().GetVirtualHosts()[0].GetRoutes() {
			if action := route.GetRoute(); action != nil {
				action.ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: "plain"}
			}
		}
	})
}

// An ext_proc filter that also sends the answer is served like any other: Holdgate's
// part ends with the request.
func TestAnswersArriveWithEveryResponseMode(t *testing.T) {
	for name, modes := range map[string]*extprocv3.ProcessingMode{
		"SEND, without the body": {ResponseHeaderMode: extprocv3.ProcessingMode_SEND},
		"STREAMED":               {ResponseHeaderMode: extprocv3.ProcessingMode_SEND, ResponseBodyMode: extprocv3.ProcessingMode_STREAMED},
		"FULL_DUPLEX_STREAMED": {
			ResponseHeaderMode: extprocv3.ProcessingMode_SEND, ResponseBodyMode: extprocv3.ProcessingMode_FULL_DUPLEX_STREAMED,
			ResponseTrailerMode: extprocv3.ProcessingMode_SEND,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := startForeign(t, func(b *bootstrapv3.Bootstrap) {
				changeEdge(t, b, func(_ *hcmv3.HttpConnectionManager, p *extprocv3.ExternalProcessor) {
					p.ProcessingMode.ResponseHeaderMode = modes.GetResponseHeaderMode()
					p.ProcessingMode.ResponseBodyMode = modes.GetResponseBodyMode()
					p.ProcessingMode.ResponseTrailerMode = modes.GetResponseTrailerMode()
				})
			})
			answers := []<-chan result{
				s.start(t.Context(), chatPath, chatBody("m", false)),
				s.start(t.Context(), chatPath, chatBody("m", true), "X-Wake-Keepalive", "off"),
			}
			s.metric(`hivenet_pending_demand{model="m"}`, "2")
			e := newEngine(t, func(w http.ResponseWriter, _ *http.Request) {
				for range 20 { // in several pieces
					_, _ = io.WriteString(w, strings.Repeat("x", 5000))
					_ = http.NewResponseController(w).Flush()
				}
			})
			s.register(hello("a", e.addr(), 8, "m"))
			for range 8 {
				answers = append(answers, s.start(t.Context(), chatPath, bigBody("m", 100<<10)))
			}
			for _, answer := range answers {
				select {
				case r := <-answer:
					require.NoError(t, r.err)
					require.Equal(t, http.StatusOK, r.status, r.body)
					require.Equal(t, strings.Repeat("x", 100_000), r.body)
				case <-time.After(10 * time.Second):
					require.FailNow(t, "no answer")
				}
			}
			require.Equal(t, http.StatusNotFound, s.post(chatPath, chatBody("nobody", false)).status)
			s.atRest()
		})
	}
}
