// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"io"
	"net/netip"
	"strconv"
	"testing"
	"testing/synctest"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/extproctest"
	"github.com/holdgate/holdgate/extproc/wire"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/refusal"
)

// pickAll makes the router choose as a picker.
func (r *rig) pickAll() { r.to = AsPicker }

// pickedBy is where the router lets a gateway send a request: in the header, and in the metadata.
func pickedBy(t *testing.T, x *extproctest.Exchange) (header, metadata string) {
	t.Helper()
	namespace := x.Messages()[0].GetDynamicMetadata().GetFields()[envoy.PickedNamespace].GetStructValue().GetFields()
	return forwardedBy(t, x).set[envoy.PickedHeader], namespace[envoy.PickedHeader].GetStringValue()
}

// hinted adds the gateway's hint to a request.
func hinted(t *testing.T, value any, ms []*extprocv3.ProcessingRequest) []*extprocv3.ProcessingRequest {
	t.Helper()
	return identified(t, ms, map[string]any{envoy.HintNamespace: map[string]any{envoy.HintKey: value}})
}

func TestAPickerNamesTheAddresses(t *testing.T) {
	t.Parallel()
	for name, trailers := range map[string]bool{"a body": false, "a body with trailers": true} {
		bubble(t, func(r *rig) {
			t := r.t
			r.pickAll()
			r.others = ",10.0.0.8:8000"
			r.engines = map[string]Engine{engineA: {KeyHeader: "x-api-key", Key: "engine", Host: "h", Prefix: "/p", TLS: "system", SNI: "s"}}
			r.slots.up(engineA, 1)
			ms := extproctest.Request(chatPath, gatewayBody, envoy.PickedHeader, "10.9.9.9:1", "holdgate-via", "another", "x-wake-timeout", "1s", "authorization", "Bearer k")
			if trailers {
				ms = []*extprocv3.ProcessingRequest{ms[0], extproctest.RequestBody(gatewayBody, false), extproctest.RequestTrailers("x-t", "1")}
			}
			x := r.viaGateway(t, ms...)
			require.ErrorIs(t, x.End(), io.EOF, name)
			header, metadata := pickedBy(t, x)
			require.Equal(t, engineA+",10.0.0.8:8000", header, name)
			require.Equal(t, header, metadata, name)
			f := forwardedBy(t, x)
			require.Equal(t, "another,"+r.name, f.set[envoy.ViaHeader], name)
			require.Equal(t, "engine", f.set["x-api-key"], name)
			require.NotContains(t, f.set, ":authority", "the gateway's route says it")
			require.NotContains(t, f.set, ":path", name)
			require.False(t, f.first || f.reroute, name)
			require.ElementsMatch(t, []string{"x-wake-timeout", "authorization"}, f.removed, name)
		})
	}
}

// Only the router may say where a gateway sends a request, also of requests that it does not
// decide on.
func TestAClientCannotPick(t *testing.T) {
	t.Parallel()
	stranger := []string{envoy.PickedHeader, "10.9.9.9:1"}
	pass := func(r *rig, headers ...string) []string {
		kv := append([]string{":method", "GET", ":path", "/other"}, headers...)
		x := r.viaGateway(r.t, extproctest.RequestHeaders(true, kv...))
		require.ErrorIs(r.t, x.End(), io.EOF)
		return x.Messages()[0].GetRequestHeaders().GetResponse().GetHeaderMutation().GetRemoveHeaders()
	}
	call := func(r *rig, headers ...string) []string {
		x := r.viaGateway(r.t, extproctest.Request(chatPath, gatewayBody, headers...)...)
		require.ErrorIs(r.t, x.End(), io.EOF)
		return forwardedBy(r.t, x).removed
	}
	for name, c := range map[string]struct {
		to      Destination
		picks   bool // as a picker for another model
		headers []string
		want    []string
	}{
		"a picker":                    {AsPicker, true, stranger, []string{envoy.PickedHeader}},
		"by route, picks for another": {ByRoute, true, stranger, []string{envoy.PickedHeader}},
		"by route":                    {ByRoute, false, stranger, nil}, // a picker before us
		"without the header":          {AsPicker, true, nil, nil},
	} {
		bubble(t, func(r *rig) {
			r.to, r.picks = c.to, c.picks
			require.Equal(r.t, c.want, pass(r, c.headers...), name)
			if c.to == ByRoute {
				r.slots.up(engineA, 1)
				require.Equal(r.t, c.want, call(r, c.headers...), name)
			}
		})
	}
}

// A replica may be the gateway's own listener, or lead to it.
func TestARequestThatAPickerGetsAgain(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.pickAll()
		r.slots.up(engineA, 1)
		x := r.viaGateway(t, extproctest.Request(chatPath, gatewayBody)...)
		via := forwardedBy(t, x).set[envoy.ViaHeader]
		for _, via := range []string{via, "a, " + via + ",b"} {
			y := r.viaGateway(t, extproctest.Request(chatPath, gatewayBody, envoy.ViaHeader, via)...)
			require.ErrorIs(t, y.End(), io.EOF)
			require.Contains(t, y.Events()[0], `508 {"error":{"code":"loop_detected"`)
		}
		y := r.viaGateway(t, extproctest.Request(chatPath, gatewayBody, envoy.ViaHeader, via+"x")...)
		require.ErrorIs(t, y.End(), io.EOF)
		require.Equal(t, "0s serve on , 13 bytes", y.Events()[0])
		elapse(logWait)
	})
}

func TestTheDecisionGetsTheHint(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		to        Destination
		value     any
		none      bool
		fits, not string
	}{
		"a list":           {AsPicker, []any{"10.0.0.1:8000", "[fd00::1]:8000"}, false, "[fd00::1]:8000", "10.0.0.2:8000"},
		"a string":         {AsPicker, "10.0.0.1:8000,10.0.0.3:8000", false, "10.0.0.3:8000", "10.0.0.2:8000"},
		"an empty list":    {AsPicker, []any{}, false, "", "10.0.0.2:8000"},
		"of another kind":  {AsPicker, 7.0, true, "", ""},
		"but not by route": {ByRoute, []any{"10.0.0.1:8000"}, true, "", ""},
	} {
		bubble(t, func(r *rig) {
			t := r.t
			r.to = c.to
			r.decide = func(q *Request) Decision {
				require.Equal(t, c.none, q.Hint == nil, name)
				require.True(t, c.fits == "" || q.Hint.Fits(c.fits), name)
				require.True(t, c.not == "" || !q.Hint.Fits(c.not), name)
				return Decision{Refusal: refusal.NotHinted(q.Model)}
			}
			x := r.viaGateway(t, hinted(t, c.value, extproctest.Request(chatPath, gatewayBody))...)
			require.ErrorIs(t, x.End(), io.EOF, name)
			require.Contains(t, x.Events()[0], `503 {"error":{"code":"no_capacity"`, name)
			elapse(logWait)
			require.Nil(t, r.records[0].Request.Hint, "a record does not keep it")
		})
	}
}

// The protocol's 503 says that there is no engine, and its 429 that there is no room on them.
func TestAPickerShedsWith429(t *testing.T) {
	t.Parallel()
	for why, want := range map[error]string{
		holdstate.ErrNoQueue: "429", holdstate.ErrGateFull: "429", holdstate.ErrFull: "503", holdstate.ErrTimeout: "504", holdstate.ErrDraining: "503",
	} {
		for to, status := range map[Destination]string{AsPicker: want, ByRoute: ""} {
			bubble(t, func(r *rig) {
				t := r.t
				r.to = to
				refused := refusal.For(why, refusal.Wait{Model: "m", Wakes: r.machine})
				r.decide = func(*Request) Decision { return Decision{Refusal: refused} }
				if status == "" {
					status = strconv.Itoa(refused.Status)
				}
				x := r.viaGateway(t, extproctest.Request(chatPath, gatewayBody)...)
				require.ErrorIs(t, x.End(), io.EOF)
				require.Contains(t, x.Events()[0], " "+status+` {"error":{"code":"`+refused.Code, why.Error())
				elapse(logWait)
				require.Equal(t, status, strconv.Itoa(r.records[0].Status), "the record has what the client got")
			})
		}
	}
}

// The second pass of a held request goes to the replica whose slot it has.
func TestAPickerGetsAHeldRequestBack(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.pickAll()
		r.others = ",10.0.0.8:8000"
		x := r.viaGateway(t, hinted(t, []any{}, extproctest.Request(chatPath, gatewayBody))...)
		elapse(interval)
		r.slots.up(engineA, 1)
		back := r.engine.call(t, 1)
		require.NotEmpty(t, back.Header.Get(envoy.TicketHeader))
		y := r.viaGateway(t, hinted(t, []any{"10.0.0.9:1"}, again(back, envoy.PickedHeader, "10.9.9.9:1"))...)
		require.ErrorIs(t, y.End(), io.EOF)
		header, metadata := pickedBy(t, y)
		require.Equal(t, engineA, header, "no other replica has its slot")
		require.Equal(t, header, metadata)
		require.Equal(t, envoy.ModeRelayed, forwardedBy(t, y).mode)
		require.Equal(t, 1, r.slots.taken())
		_ = back.respond(200).Close()
		x.RequireEnded(t, "15s head 200", `15s " "`, `15s "" end`)
		elapse(logWait)
		require.Len(t, r.records, 1)
	})
	bubble(t, func(r *rig) { // without a keepalive it goes on itself
		t := r.t
		r.pickAll()
		x := r.viaGateway(t, extproctest.Request(chatPath, gatewayBody, "x-wake-keepalive", "off")...)
		elapse(2 * interval)
		r.slots.up(engineA, 1)
		require.ErrorIs(t, x.End(), io.EOF)
		require.Equal(t, "30s serve on , 13 bytes", x.Events()[0])
		header, _ := pickedBy(t, x)
		require.Equal(t, engineA, header)
	})
}

// When the gateway has sent the request to another of the addresses, the record says so.
func TestTheRecordNamesTheAddressThatAnswered(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.pickAll()
		r.slots.up(engineA, 1)
		record, end := r.logStream(t, envoy.LogEdge)
		defer end()
		serve := func() string {
			id := uuid.NewString()
			r.viaGateway(t, extproctest.Request(chatPath, gatewayBody, headerRequestID, id)...)
			return id
		}
		record(serve(), envoy.ModeNative) // from here on the log tells
		id := serve()
		require.Equal(t, 1, r.slots.taken())
		require.Len(t, r.records, 1)
		r.Logged(&wire.LogEntry{RequestID: id, Native: true, Status: 200, Upstream: netip.MustParseAddrPort("10.0.0.8:8000")})
		synctest.Wait()
		require.Zero(t, r.slots.taken())
		last := r.records[len(r.records)-1]
		require.Equal(t, "10.0.0.8:8000", last.Upstream.String())
		require.Equal(t, engineA, last.Grant.Replica().Address)
	})
}
