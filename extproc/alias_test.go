// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"bytes"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/extproc/extproctest"
)

func TestAnAliasInACompressedBodySendsItDecoded(t *testing.T) {
	t.Parallel()
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, err := z.Write([]byte(`{"model":"alias","x":1}`))
	require.NoError(t, err)
	require.NoError(t, z.Close())
	bubble(t, func(r *rig) {
		t := r.t
		r.slots.up(engineA, 1)
		x := r.ask(t, extproctest.Request(chatPath, packed.String(), "content-encoding", "gzip"))
		ms := x.Messages()
		require.Len(t, ms, 2)
		require.Contains(t, ms[0].GetRequestHeaders().GetResponse().GetHeaderMutation().GetRemoveHeaders(), "content-encoding")
		require.Equal(t, `{"model":"m","x":1}`, string(ms[1].GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetBody()))
		x.Reset()
		r.endAllNow()
		require.Equal(t, "m", r.only(t).Request.Model)
	})
}

func TestAnAliasOfASleepingModel(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		x := r.ask(t, extproctest.Request(chatPath, `{"model":"alias"}`, "content-encoding", "identity"))
		r.slots.up(engineA, 1)
		call := r.engine.call(t, 1)
		require.Equal(t, `{"model":"m"}`, string(call.body))
		require.Equal(t, int64(len(call.body)), call.ContentLength)
		require.Empty(t, call.Header.Get("Content-Encoding"))
		_ = call.respond(200).Close()
		x.RequireEnded(t, "0s head 200", `0s "" end`)
	})
}
