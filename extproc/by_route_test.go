// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/extproctest"
	"github.com/holdgate/holdgate/internal/refusal"
)

const gatewayBody = `{"model":"m"}`

// routeAll makes a gateway choose where requests go.
func (r *rig) routeAll() { r.to = ByRoute }

// viaGateway sends a request as a gateway does, which names no lane.
func (r *rig) viaGateway(t *testing.T, ms ...*extprocv3.ProcessingRequest) *extproctest.Exchange {
	t.Helper()
	x := r.open(t, "")
	x.Send(ms...)
	synctest.Wait()
	return x
}

// forwarded is what the router lets a gateway do with a request.
type forwarded struct {
	set     map[string]string
	removed []string
	mode    string
	first   bool // a destination was set
	reroute bool
}

func forwardedBy(t *testing.T, x *extproctest.Exchange) forwarded {
	t.Helper()
	answers := x.Messages()
	require.NotEmpty(t, answers)
	head := answers[0].GetRequestHeaders().GetResponse()
	require.NotNil(t, head)
	f := forwarded{set: map[string]string{}, removed: head.GetHeaderMutation().GetRemoveHeaders(), reroute: head.GetClearRouteCache()}
	for _, h := range head.GetHeaderMutation().GetSetHeaders() {
		f.set[h.GetHeader().GetKey()] = string(h.GetHeader().GetRawValue())
	}
	metadata := answers[0].GetDynamicMetadata().GetFields()[envoy.Namespace].GetStructValue().GetFields()
	f.mode = metadata[envoy.ModeKey].GetStringValue()
	_, f.first = metadata[envoy.FirstKey]
	return f
}

func TestByRouteTheRouterSetsNoDestination(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.routeAll()
		r.engineKey = [2]string{"authorization", "Bearer engine"}
		r.engines = map[string]Engine{engineA: {
			KeyHeader: "authorization", Key: "Bearer engine", Host: "h", Prefix: "/p", TLS: "system", SNI: "s", NoOrigin: true,
		}}
		r.slots.up(engineA, 1)
		id := uuid.NewString()
		x := r.viaGateway(t, extproctest.Request(chatPath, gatewayBody, headerRequestID, id, "authorization", "Bearer k", "x-api-key", "k",
			"origin", "https://a.b", "x-wake-timeout", "1s")...)
		x.RequireEnded(t, "0s serve on , 13 bytes", "0s body 13 end")
		f := forwardedBy(t, x)
		require.Equal(t, forwarded{
			set:     map[string]string{"authorization": "Bearer engine"},
			removed: []string{"x-wake-timeout", "x-api-key", "origin"}, mode: envoy.ModeNative,
		}, f, "host, path and route are the gateway's")
	})
}

// Holdgate's own bootstrap has no routes to engines, so its requests go to replicas.
func TestALaneOfTheOwnBootstrapHasNoRoutes(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.routeAll()
		r.slots.up(engineA, 1)
		record, end := r.logStream(t, envoy.LogEdge)
		defer end()
		id := uuid.NewString()
		x := r.ask(t, extproctest.Request(chatPath, gatewayBody, headerRequestID, id))
		x.RequireEnded(t, "0s serve on "+engineA+", 13 bytes", "0s body 13 end")
		record(id, envoy.ModeNative)
		y := r.ask(t, extproctest.Request(chatPath, gatewayBody, "x-holdgate-pass", "forged", headerRequestID, id))
		y.RequireEnded(t, "0s serve on "+engineA+", 13 bytes", "0s body 13 end")
		require.Contains(t, forwardedBy(t, y).removed, "x-holdgate-pass")
		record(id, envoy.ModeNative)
	})
}

func TestByRouteSlotsNeedTheGatewaysLog(t *testing.T) {
	t.Parallel()
	serve := func(t *testing.T, r *rig) (id string) {
		t.Helper()
		id = uuid.NewString()
		r.viaGateway(t, extproctest.Request(chatPath, gatewayBody, headerRequestID, id)...).
			RequireEnded(t, "0s serve on , 13 bytes", "0s body 13 end")
		return id
	}
	const warning = "no access log of this gateway has come yet"
	bubble(t, func(r *rig) { // no log, or one without our metadata, in which no request could be found
		t := r.t
		r.routeAll()
		r.slots.up(engineA, 1)
		record, end := r.logStream(t, envoy.LogEdge)
		for range 3 {
			id := serve(t, r)
			require.Zero(t, r.slots.taken())
			require.Zero(t, r.InFlight())
			record(id, "")
		}
		end()
		require.Len(t, r.records, 3)
		for _, rec := range r.records {
			require.Equal(t, VerdictServe, rec.Verdict)
			require.Zero(t, rec.Status, "nobody says how it ended")
			require.Empty(t, rec.ErrorCode)
			require.NotNil(t, rec.Grant)
		}
		require.Equal(t, 3, r.routedNow())
		require.Equal(t, 1, strings.Count(r.log.String(), warning))
	})
	for name, mode := range map[string]string{"one that was served": envoy.ModeNative, "one that was refused": envoy.ModeLocal} {
		bubble(t, func(r *rig) { // the log opens with its first entry
			t := r.t
			r.routeAll()
			r.slots.up(engineA, 1)
			record, end := r.logStream(t, envoy.LogEdge)
			record(serve(t, r), mode)
			id := serve(t, r)
			require.Equal(t, 1, r.slots.taken(), name)
			record(id, envoy.ModeRelayed)
			require.Equal(t, 1, r.slots.taken(), "an entry of the relay's own request")
			record(id, envoy.ModeNative)
			require.Zero(t, r.slots.taken())
			end()
			serve(t, r)
			require.Zero(t, r.slots.taken(), "the log has ended")
		})
	}
}

func TestByRouteAHoldIsSilentWithoutAWayBack(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.routeAll()
		r.d.Gateway = nil
		x := r.viaGateway(t, extproctest.Request(chatPath, gatewayBody)...)
		elapse(4 * interval)
		r.slots.up(engineA, 1)
		x.RequireEnded(t, "1m0s serve on , 13 bytes", "1m0s body 13 end")
	})
	bubble(t, func(r *rig) { // the relay lane, where --relay is the gateway
		t := r.t
		r.d.Relay = nil
		x := r.ask(t, extproctest.Request(chatPath, gatewayBody))
		elapse(4 * interval)
		r.slots.up(engineA, 1)
		require.Equal(t, "1m0s serve on "+engineA+", 13 bytes", x.Events()[0])
		record, end := r.logStream(t, envoy.LogEdge)
		defer end()
		record(r.flights.all()[0].id, envoy.ModeNative)
	})
}

// Before its first keepalive the held request itself can go on.
func TestByRouteAShortHoldIsNotRelayed(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.routeAll()
		x := r.viaGateway(t, extproctest.Request(chatPath, gatewayBody)...)
		elapse(interval - time.Second)
		r.slots.up(engineA, 1)
		x.RequireEnded(t, "14s serve on , 13 bytes", "14s body 13 end")
		require.Empty(t, r.engine.calls)
		require.Equal(t, VerdictHold, r.records[0].Verdict)
	})
}

// relayed holds a request, lets the relay send it back, and returns what the relay sent. The
// answer of the engine is for the test to send.
func (r *rig) relayed(t *testing.T, headers ...string) (x *extproctest.Exchange, back *call) {
	t.Helper()
	r.routeAll()
	x = r.viaGateway(t, extproctest.Request(chatPath+"?hg_hop=1&a=b", `{"model":"alias"}`, headers...)...)
	elapse(interval)
	r.slots.up(engineA, 1)
	return x, r.engine.call(t, 1)
}

// again are the messages of a request of the relay that has reached the gateway.
func again(c *call, headers ...string) []*extprocv3.ProcessingRequest {
	kv := []string{":method", c.Method, ":path", c.URL.Opaque, ":authority", c.Host}
	for name, values := range c.Header {
		for _, value := range values {
			kv = append(kv, strings.ToLower(name), value)
		}
	}
	return []*extprocv3.ProcessingRequest{extproctest.RequestHeaders(false, append(kv, headers...)...), extproctest.RequestBody(string(c.body), true)}
}

func TestByRouteTheRelaySendsTheRequestBack(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.stripReturned = true
		r.authenticate = func(Credentials) (fakeCall, *refusal.Refusal) { return fakeCall{strip: true}, nil }
		r.engineKey = [2]string{"x-api-key", "engine"}
		id := uuid.NewString()
		x, back := r.relayed(t, headerRequestID, id, "authorization", "Bearer k", "x-custom", "1", "x-wake-timeout", "60s")
		require.Equal(t, "api.example.com", back.Host)
		require.JSONEq(t, gatewayBody, string(back.body), "the alias is resolved")
		ticket := back.Header.Get(envoy.TicketHeader)
		require.NotEmpty(t, ticket)
		require.Equal(t, http.Header{
			"X-Request-Id": {id}, "Authorization": {"Bearer k"}, "X-Custom": {"1"}, "User-Agent": nil, "Accept-Encoding": {"identity"},
			"X-Holdgate-Pass": {ticket},
		}, back.Header, "filters of the gateway may need the caller's key")

		// The second pass lets it through, whatever id the gateway has given it.
		message := again(back, headerRequestID, uuid.NewString())
		y := r.viaGateway(t, message...)
		require.Equal(t, []string{"0s serve on , 13 bytes, but not native", "0s body 13 end"}, y.Events())
		require.ErrorIs(t, y.End(), io.EOF)
		f := forwardedBy(t, y)
		require.Equal(t, forwarded{
			set: map[string]string{"x-api-key": "engine", headerRequestID: id}, removed: []string{"x-holdgate-pass", "authorization"}, mode: envoy.ModeRelayed,
		}, f)
		require.Equal(t, []string{"m "}, r.returned)
		require.Equal(t, 1, r.InFlight(), "the request that is relayed")
		require.Equal(t, 1, r.slots.taken())
		require.Equal(t, 1, r.routedNow())

		_ = back.respond(200, "X-Holdgate-Flags", "UF").Close()
		x.RequireEnded(t, "15s head 200", `15s " "`, `15s "" end`)
		elapse(logWait)
		require.Len(t, r.records, 1, "one request")

		z := r.viaGateway(t, message...)
		require.ErrorIs(t, z.End(), io.EOF)
		require.Contains(t, z.Events()[0], `403 {"error":{"code":"pass_invalid","message":"x-holdgate-pass was used before"`)
		require.Equal(t, []string{"used"}, r.ticketsRefused)
		elapse(logWait)
		require.Len(t, r.records, 2)
		require.Equal(t, "pass_invalid", r.records[1].ErrorCode)
	})
}

func TestByRouteARequestThatWasChangedDoesNotPass(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func([]*extprocv3.ProcessingRequest) []*extprocv3.ProcessingRequest
		class  string
	}{
		"another body": {func(m []*extprocv3.ProcessingRequest) []*extprocv3.ProcessingRequest {
			return append(m[:1], extproctest.RequestBody(`{"model":"x"}`, true))
		}, "mismatch"},
		"a longer body": {func(m []*extprocv3.ProcessingRequest) []*extprocv3.ProcessingRequest {
			return append(m[:1], extproctest.RequestBody(gatewayBody, false), extproctest.RequestBody(" ", false))
		}, "mismatch"},
		"no body": {func(m []*extprocv3.ProcessingRequest) []*extprocv3.ProcessingRequest {
			m[0].GetRequestHeaders().EndOfStream = true
			return m[:1]
		}, "mismatch"},
		"another path": {func(m []*extprocv3.ProcessingRequest) []*extprocv3.ProcessingRequest {
			m[0].GetRequestHeaders().GetHeaders().GetHeaders()[1].RawValue = []byte("/v1/completions")
			return m
		}, "mismatch"},
		"another ticket beside it": {func(m []*extprocv3.ProcessingRequest) []*extprocv3.ProcessingRequest {
			h := m[0].GetRequestHeaders().GetHeaders()
			h.Headers = append(h.Headers, extproctest.HeaderMap(envoy.TicketHeader, "x").GetHeaders()...)
			return m
		}, "forged"},
		"a minute later": {func(m []*extprocv3.ProcessingRequest) []*extprocv3.ProcessingRequest {
			elapse(61 * time.Second)
			return m
		}, "expired"},
	} {
		bubble(t, func(r *rig) {
			t := r.t
			x, back := r.relayed(t)
			y := r.viaGateway(t, c.change(again(back))...)
			require.ErrorIs(t, y.End(), io.EOF, name)
			require.Contains(t, y.Events()[0], `403 {"error":{"code":"pass_invalid"`, name)
			require.Equal(t, []string{c.class}, r.ticketsRefused, name)
			require.Empty(t, r.returned, name)
			_ = back.respond(200).Close()
			require.ErrorIs(t, x.End(), io.EOF)
			elapse(logWait)
		})
	}
}

// A client may leave while its request comes back.
func TestByRouteARequestThatLeavesOnItsWayBack(t *testing.T) {
	t.Parallel()
	for name, leave := range leavings {
		bubble(t, func(r *rig) {
			t := r.t
			x, back := r.relayed(t)
			y := r.viaGateway(t, again(back)[0])
			leave(y)
			_ = y.End()
			require.Empty(t, r.ticketsRefused, name)
			_ = back.respond(200).Close()
			require.ErrorIs(t, x.End(), io.EOF)
			elapse(logWait)
		})
	}
}

// A gateway without an engine answers itself, and not in JSON: the request is held again,
// and gets another ticket.
func TestByRouteAGatewaysOwnAnswerIsNone(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		x, back := r.relayed(t)
		_ = back.respond(503, "Content-Type", "text/plain").Close()
		synctest.Wait()
		require.Equal(t, []string{engineA + " answered that it did not take the request"}, r.slots.failures())
		r.slots.up(engineA, 1)
		next := r.engine.call(t, 2)
		require.NotEqual(t, back.Header.Get(envoy.TicketHeader), next.Header.Get(envoy.TicketHeader))
		_ = next.respond(200).Close()
		x.RequireEnded(t, "15s head 200", `15s " "`, `15s "" end`)
		elapse(logWait)
	})
	bubble(t, func(r *rig) { // an engine's own
		t := r.t
		x, back := r.relayed(t)
		w := back.respond(503, "Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"error":{"message":"busy"}}`)
		_ = w.Close()
		require.ErrorIs(t, x.End(), io.EOF)
		require.Empty(t, r.slots.failures())
		elapse(logWait)
	})
}

// A gateway answers 503, too, when the engine died under the request. Such a request must not be
// sent to one engine after the other.
func TestByRouteARequestUnderWhichEnginesDieEnds(t *testing.T) {
	t.Parallel()
	for _, reason := range []string{"reset reason: connection termination", "retried and the latest reset reason: remote reset"} {
		bubble(t, func(r *rig) {
			t := r.t
			x, back := r.relayed(t)
			for n := 1; ; n++ {
				w := back.respond(503, "Content-Type", "text/plain")
				_, _ = io.WriteString(w, "upstream connect error or disconnect/reset before headers. "+reason)
				_ = w.Close()
				synctest.Wait()
				require.Equal(t, engineA+" ended the connection before its answer", r.slots.failures()[n-1])
				if n == 3 {
					break
				}
				elapse(time.Second)
				r.slots.up(engineA, 1)
				back = r.engine.call(t, n+1)
			}
			require.Contains(t, strings.Join(x.Events(), " "), "backend_error")
			require.ErrorIs(t, x.End(), io.EOF)
			require.Zero(t, r.slots.taken())
			elapse(logWait)
		})
	}
	bubble(t, func(r *rig) { // an answer that does not end
		t := r.t
		_, back := r.relayed(t)
		w := back.respond(503, "Content-Type", "text/plain")
		elapse(reasonWait)
		require.Equal(t, []string{engineA + " answered that it did not take the request"}, r.slots.failures())
		_ = w.Close()
		r.slots.up(engineA, 1)
		_ = r.engine.call(t, 2).respond(200).Close()
		elapse(logWait)
	})
}

func TestTheGatewayIsCalledAtItsAddress(t *testing.T) {
	t.Parallel()
	seen := make(chan string, 1)
	handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		seen <- r.Host + " " + r.RequestURI + " " + string(body)
	})
	secure := httptest.NewTLSServer(handler)
	defer secure.Close()
	plain := httptest.NewServer(handler)
	defer plain.Close()
	roots := x509.NewCertPool()
	roots.AddCert(secure.Certificate())
	for at, roots := range map[string]*x509.CertPool{plain.URL: nil, secure.URL: roots} {
		u, err := url.Parse(at)
		require.NoError(t, err)
		req := &http.Request{
			Method: http.MethodPost, URL: &url.URL{Scheme: "http", Host: "relay", Opaque: "/v1/x?a=%2F"}, Host: "api.example.com",
			Header: http.Header{}, Body: io.NopCloser(strings.NewReader("b")), ContentLength: 1,
		}
		gateway := NewGateway(u, roots)
		resp, err := gateway.RoundTrip(req.WithContext(t.Context()))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, "api.example.com /v1/x?a=%2F b", <-seen)
	}
	u, err := url.Parse(secure.URL)
	require.NoError(t, err)
	req := (&http.Request{Method: http.MethodGet, URL: &url.URL{Opaque: "/"}, Header: http.Header{}}).WithContext(t.Context())
	_, err = NewGateway(u, nil).RoundTrip(req)
	var unknown *tls.CertificateVerificationError
	require.ErrorAs(t, err, &unknown)
}

// withTrailers returns a request that ends with trailers.
func withTrailers(headers ...string) []*extprocv3.ProcessingRequest {
	ms := extproctest.Request(chatPath, gatewayBody, headers...)
	ms[1].GetRequestBody().EndOfStream = false
	return append(ms, extproctest.RequestTrailers("x-t", "1"))
}

// Another filter behind this one may make Envoy send a body with trailers twice, so such a
// request is sent back without them, with the engine's own status.
func TestByRouteARequestWithTrailersIsRelayed(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.routeAll()
		r.slots.up(engineA, 1)
		x := r.viaGateway(t, withTrailers()...)
		back := r.engine.call(t, 1)
		require.Equal(t, gatewayBody, string(back.body))
		require.NotEmpty(t, back.Header.Get(envoy.TicketHeader))
		require.Empty(t, back.Trailer)
		require.Equal(t, 1, r.slots.taken())

		// The gateway found no engine: it is decided again, and waits without keepalives.
		_ = back.respond(503, "Content-Type", "text/plain").Close()
		synctest.Wait()
		require.Zero(t, r.slots.taken())
		require.Empty(t, x.Events())
		elapse(interval - time.Second)
		r.slots.up(engineA, 1)
		w := r.engine.call(t, 2).respond(429, "X-E", "1")
		_, _ = io.WriteString(w, "busy")
		_ = w.Close()
		x.RequireEnded(t, "14s head 429", `14s "busy"`, `14s "" end`)
		require.Equal(t, 1, r.routedNow())
		elapse(logWait)
		require.Len(t, r.records, 1)
		require.Equal(t, 429, r.records[0].Status)
	})
	for name, leave := range leavings {
		bubble(t, func(r *rig) {
			t := r.t
			r.routeAll()
			r.slots.up(engineA, 1)
			x := r.viaGateway(t, withTrailers()...)
			r.engine.call(t, 1)
			leave(x)
			_ = x.End()
			elapse(logWait)
			require.Zero(t, r.slots.taken(), name)
			require.Equal(t, StatusClientGone, r.records[0].Status, name)
		})
	}
	bubble(t, func(r *rig) { // without the gateway's URL it goes on itself
		t := r.t
		r.routeAll()
		r.d.Gateway = nil
		r.slots.up(engineA, 1)
		x := r.viaGateway(t, withTrailers()...)
		require.ErrorIs(t, x.End(), io.EOF)
		require.Contains(t, x.Events()[0], "serve on ")
	})
}

// unreachable fails to connect so many times.
type unreachable struct {
	times  int
	op     string
	tries  int
	bodies []string
}

func (u *unreachable) RoundTrip(req *http.Request) (*http.Response, error) {
	text, err := io.ReadAll(req.Body)
	if err := errors.Join(err, req.Body.Close()); err != nil {
		return nil, err
	}
	u.tries++
	u.bodies = append(u.bodies, string(text))
	if u.tries <= u.times {
		return nil, fmt.Errorf("calling: %w", &net.OpError{Op: u.op, Err: syscall.ECONNREFUSED})
	}
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

// A gateway that restarts, or one of several behind a name, is no reason to end a request that
// has waited.
func TestAGatewayThatCannotBeReachedIsTriedAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		u     unreachable
		leave time.Duration // the client leaves after it
		tries int
		took  time.Duration
		fails bool
	}{
		"restarts":              {unreachable{times: 3, op: "dial"}, time.Hour, 4, 1750 * time.Millisecond, false},
		"is gone":               {unreachable{times: 9, op: "dial"}, time.Hour, 5, 3750 * time.Millisecond, true},
		"fails after its begin": {unreachable{times: 9, op: "read"}, time.Hour, 1, 0, true},
		"the client leaves":     {unreachable{times: 9, op: "dial"}, time.Second, 3, time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), c.leave)
				defer cancel()
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://relay/v1", strings.NewReader(gatewayBody))
				require.NoError(t, err)
				begin := time.Now()
				resp, err := (&gateway{RoundTripper: &c.u, scheme: "http", host: "gateway"}).RoundTrip(req)
				if err == nil {
					require.NoError(t, resp.Body.Close())
				}
				require.Equal(t, c.fails, err != nil)
				require.Equal(t, c.tries, c.u.tries)
				require.Equal(t, c.took, time.Since(begin))
				require.Equal(t, slices.Repeat([]string{gatewayBody}, c.tries), c.u.bodies)
			})
		})
	}
}
