// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"fmt"
	"slices"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/extproctest"
	"github.com/holdgate/holdgate/internal/refusal"
)

const ownKey = "sk-of-the-engine"

// keysSent returns the changes of the headers with keys on the way to the engine.
func keysSent(t *testing.T, m *extprocv3.ProcessingResponse) []string {
	t.Helper()
	mutation := m.GetRequestHeaders().GetResponse().GetHeaderMutation()
	var sent []string
	for _, name := range keyHeaders {
		if slices.Contains(mutation.GetRemoveHeaders(), name) {
			sent = append(sent, "no "+name)
		}
	}
	for _, o := range mutation.GetSetHeaders() {
		if slices.Contains(keyHeaders[:], o.GetHeader().GetKey()) {
			require.Equal(t, corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD, o.GetAppendAction())
			sent = append(sent, fmt.Sprintf("%s: %s", o.GetHeader().GetKey(), o.GetHeader().GetRawValue()))
		}
	}
	return sent
}

func TestTheEnginesOwnKeyTakesThePlaceOfTheCallers(t *testing.T) {
	t.Parallel()
	callers := []string{headerAuthorization, "Bearer callers", headerAPIKey, "callers"}
	for name, c := range map[string]struct {
		key     [2]string
		strip   bool
		native  []string
		relayed map[string]string
	}{
		"no key":             {native: nil, relayed: map[string]string{"Authorization": "Bearer callers", "X-Api-Key": "callers"}},
		"no key, a key file": {strip: true, native: []string{"no authorization", "no x-api-key"}, relayed: map[string]string{}},
		"bearer": {
			key:    [2]string{headerAuthorization, "Bearer " + ownKey},
			native: []string{"no x-api-key", "authorization: Bearer " + ownKey}, relayed: map[string]string{"Authorization": "Bearer " + ownKey},
		},
		"x-api-key, a key file": {
			key: [2]string{headerAPIKey, ownKey}, strip: true,
			native: []string{"no authorization", "x-api-key: " + ownKey}, relayed: map[string]string{"X-Api-Key": ownKey},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				t := r.t
				r.engineKey = c.key
				r.authenticate = func(Credentials) (fakeCall, *refusal.Refusal) { return fakeCall{strip: c.strip}, nil }
				held := r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`, callers...))
				r.slots.up(engineA, 2)
				call := r.engine.call(t, 1)
				got := map[string]string{}
				for _, name := range []string{"Authorization", "X-Api-Key"} {
					if v := call.Header.Values(name); v != nil {
						require.Len(t, v, 1)
						got[name] = v[0]
					}
				}
				require.Equal(t, c.relayed, got)
				_ = call.respond(200).Close()
				require.ErrorContains(t, held.End(), "EOF")

				id := uuid.NewString()
				served := r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`, append(callers, headerRequestID, id)...))
				require.Equal(t, c.native, keysSent(t, served.Messages()[0]))
				_ = served.Stream.CloseSend()
				record, end := r.logStream(t, envoy.LogEdge)
				record(id, "native")
				end()
				for _, rec := range r.records {
					require.NotContains(t, fmt.Sprintf("%+v", rec), ownKey)
				}
				require.NotContains(t, r.log.String(), ownKey)
			})
		})
	}
}

// In the rehold lane a request arrives as it was changed for its first replica.
func TestTheReholdLaneRemovesTheKeyOfAnEarlierEngine(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.engineKey = [2]string{headerAuthorization, "Bearer " + ownKey}
		r.slots.up(engineA, 1)
		id := r.served(t)
		r.slots.up(engineB, 1)
		r.mu.Lock()
		r.engineKey = [2]string{}
		r.mu.Unlock()
		x := r.again(t, id, engineA, 0)
		require.Equal(t, []string{"no authorization", "no x-api-key"}, keysSent(t, x.Messages()[0]))
		requireServed(t, x, "0s", engineB)
		record, end := r.logStream(t, envoy.LogEdge)
		record(id, "native")
		end()
	})
}
