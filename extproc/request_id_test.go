// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/extproc/extproctest"
)

// idOf returns the request id in the first answer, empty without one.
func idOf(x *extproctest.Exchange) (id string) {
	m := x.Messages()[0]
	for _, o := range m.GetImmediateResponse().GetHeaders().GetSetHeaders() {
		if o.GetHeader().GetKey() == headerRequestID {
			id += string(o.GetHeader().GetRawValue())
		}
	}
	for _, h := range m.GetStreamedImmediateResponse().GetHeadersResponse().GetHeaders().GetHeaders() {
		if h.GetKey() == headerRequestID {
			id += string(h.GetRawValue())
		}
	}
	return id
}

// A client's id that is no UUID, or that is in flight, is replaced: on record, in
// answers of every form and in what the engine gets alike.
func TestEveryAnswerHasTheRequestIDOnRecord(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		const junk = "junk-77"
		var all []*extproctest.Exchange
		ask := func(path, body string, headers ...string) *extproctest.Exchange {
			all = append(all, r.ask(t, extproctest.Request(path, body, headers...)))
			return all[len(all)-1]
		}
		relayed := func(x *extproctest.Exchange, n int) {
			call := r.engine.call(t, n)
			_ = call.respond(200, "X-Request-Id", "engine's").Close()
			require.Equal(t, idOf(x), call.Header.Get(headerRequestID))
		}
		r.decide = func(q *Request) Decision {
			if q.Model == "elsewhere" {
				return Decision{Redirect: &Redirect{Site: "b", Location: "https://b.example.com"}}
			}
			r.decide = nil
			return r.Decide(q)
		}
		ask(chatPath, `{"model":"elsewhere"}`, headerRequestID, junk)

		before := ask(chatPath, `{"model":"m"}`, headerRequestID, junk)
		r.slots.up(engineA, 1)
		relayed(before, 1)
		r.slots.down(engineA)

		id := uuid.NewString()
		first := ask(chatPath, `{"model":"m"}`, headerRequestID, id)
		second := ask(chatPath, `{"model":"m","stream":true}`, headerRequestID, id)
		elapse(interval)
		r.slots.up(engineA, 1)
		relayed(first, 2)
		relayed(second, 3)
		require.Equal(t, id, idOf(first))

		ask(chatPath, `{`, headerRequestID, junk)
		ask("/nothing", "", headerRequestID, junk)
		ask(modelsPath, "", ":method", "GET", headerRequestID, junk)
		elapse(logWait + time.Second)
		answered, onRecord := map[string]int{}, map[string]int{}
		for _, x := range all {
			require.NoError(t, uuid.Validate(idOf(x)))
			answered[idOf(x)]++
		}
		for _, rec := range r.records {
			onRecord[rec.Request.ID]++
		}
		require.Len(t, answered, len(all))
		require.Equal(t, answered, onRecord)
	})
}
