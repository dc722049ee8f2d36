// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"testing"
	"testing/synctest"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/extproctest"
)

// special wants everything in its own way.
var special = Engine{
	Host: "llm.example:8443", NoOrigin: true, Prefix: "/serve/llama", TLS: "/etc/ca.pem", SNI: "inside.example", NotTaken: "503,502",
}

// sentOn is what Envoy sends a request on with.
type sentOn struct {
	set      map[string]string
	removed  []string
	metadata map[string]string
	rerouted bool
}

func sentOnBy(m *extprocv3.ProcessingResponse) sentOn {
	response := m.GetRequestHeaders().GetResponse()
	s := sentOn{set: map[string]string{}, metadata: map[string]string{}, rerouted: response.GetClearRouteCache()}
	for _, o := range response.GetHeaderMutation().GetSetHeaders() {
		s.set[o.GetHeader().GetKey()] = string(o.GetHeader().GetRawValue())
	}
	s.removed = slices.Sorted(slices.Values(response.GetHeaderMutation().GetRemoveHeaders()))
	for key, v := range m.GetDynamicMetadata().GetFields()[envoy.Namespace].GetStructValue().GetFields() {
		s.metadata[key] = v.GetStringValue()
	}
	return s
}

func (r *rig) engineIs(address string, e Engine) {
	r.mu.Lock()
	defer r.mu.Unlock()
	engines := maps.Clone(r.engines)
	if engines == nil {
		engines = map[string]Engine{}
	}
	engines[address] = e
	r.engines = engines
}

func (r *rig) ends(t *testing.T, id string) {
	t.Helper()
	record, end := r.logStream(t, envoy.LogEdge)
	record(id, "native")
	end()
}

// The next engine gets what the client sent, whatever the engine before wanted.
func TestAnEngineGetsItsRequestsAsItWantsThem(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.engineIs(engineA, special)
		r.slots.up(engineA, 1)
		id := uuid.NewString()
		x := r.ask(t, extproctest.Request(chatPath+"?x=1", `{"model":"m"}`, headerRequestID, id, "origin", "https://page.example"))
		s := sentOnBy(x.Messages()[0])
		_ = x.Stream.CloseSend()
		require.Equal(t, map[string]string{
			":authority": "llm.example:8443", ":path": "/serve/llama" + chatPath + "?x=1", envoy.SNIHeader: "inside.example",
		}, s.set)
		require.Equal(t, []string{"origin"}, s.removed)
		require.True(t, s.rerouted)
		require.Equal(t, "/etc/ca.pem", s.metadata[envoy.TLSKey])
		require.Equal(t, "503,502", s.metadata[envoy.NotTakenKey])

		r.slots.up(engineB, 1)
		lane := r.open(t, envoy.LaneRehold)
		lane.Send(extproctest.Request("/serve/llama"+chatPath+"?x=1", `{"model":"m"}`, headerRequestID, id, ":authority", "llm.example:8443",
			envoy.FailedHeader, engineA+";sent=200;received=98")...)
		s = sentOnBy(lane.Messages()[0])
		requireServed(t, lane, "0s", engineB)
		require.Equal(t, map[string]string{":authority": "api.example.com", ":path": chatPath + "?x=1"}, s.set)
		require.False(t, s.rerouted)
		require.NotContains(t, s.metadata, envoy.NotTakenKey)
		require.Equal(t, []string{engineA + " answered that it did not take the request"}, r.slots.failures())
		r.ends(t, id)
	})
}

// The lane of a pool is found by the pool's name, on both ways, and by no earlier one.
func TestARequestGoesThroughTheLaneOfItsPool(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.engineIs(engineA, Engine{Pool: "qwen", NotTaken: "503"})
		x := r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`))
		elapse(interval)
		r.slots.up(engineA, 1)
		call := r.engine.call(t, 1)
		require.Equal(t, "qwen", call.Header.Get(envoy.PoolHeader))
		require.Equal(t, engineA, call.Header.Get(envoy.DestinationHeader))
		_ = call.respond(200).Close()
		require.ErrorIs(t, x.End(), io.EOF)
		elapse(logWait)

		id := uuid.NewString()
		x = r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`, headerRequestID, id, envoy.PoolHeader, "forged"))
		s := sentOnBy(x.Messages()[0])
		_ = x.Stream.CloseSend()
		require.Equal(t, "qwen", s.metadata[envoy.PoolKey])
		require.Equal(t, engineA, s.metadata[envoy.FirstKey])
		require.True(t, s.rerouted)
		require.Contains(t, s.removed, envoy.PoolHeader)
		r.ends(t, id)
	})
}

func TestARelayedRequestIsAsItsEngineWantsIt(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.engineIs(engineA, special)
		x := r.ask(t, extproctest.Request(chatPath+"?x=1", `{"model":"m"}`, "origin", "https://page.example"))
		r.slots.up(engineA, 1)
		call := r.engine.call(t, 1)
		require.Equal(t, "llm.example:8443", call.Host)
		require.Equal(t, "/serve/llama"+chatPath+"?x=1", call.URL.RequestURI())
		require.Equal(t, "/etc/ca.pem", call.Header.Get(envoy.TLSHeader))
		require.Equal(t, "inside.example", call.Header.Get(envoy.SNIHeader))
		require.Empty(t, call.Header.Values("Origin"))

		// It did not take the request, however often: that is no death.
		for n := 2; n < 5; n++ {
			_ = call.respond(503, "content-type", "text/plain").Close()
			synctest.Wait()
			r.slots.up(engineA, 1)
			call = r.engine.call(t, n)
		}
		require.Empty(t, x.Events())
		_ = call.respond(503, "content-type", "application/json").Close()
		x.RequireEnded(t, "0s head 503", `0s "" end`)
	})
}

// A status means that a request was not taken only if the engine's configuration says so.
func TestAnEnginesStatusPasses(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		x := r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`))
		r.slots.up(engineA, 1)
		_ = r.engine.call(t, 1).respond(503, "content-type", "text/plain").Close()
		x.RequireEnded(t, "0s head 503", `0s "" end`)
	})
}

// A pool that says again and again that it did not take the request does not count as
// one that died.
func TestARequestThatIsNotTakenGoesOnInTheReholdLane(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.engineIs(engineA, Engine{NotTaken: "503"})
		r.slots.up(engineA, 1)
		id, last := r.served(t), engineA
		for i := range 3 {
			next := fmt.Sprintf("10.0.1.%d:8000", i)
			r.engineIs(next, Engine{NotTaken: "503"})
			r.slots.up(next, 1)
			x := r.open(t, envoy.LaneRehold)
			x.Send(extproctest.Request(chatPath, `{"model":"m"}`, headerRequestID, id, envoy.FailedHeader, last+";sent=200;received=98")...)
			requireServed(t, x, "0s", next)
			last = next
		}
		r.ends(t, id)
	})
}
