// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/extproctest"
	"github.com/holdgate/holdgate/internal/refusal"
)

// identified adds metadata to a request, as Envoy does to each of its messages.
func identified(t *testing.T, ms []*extprocv3.ProcessingRequest, metadata map[string]any) []*extprocv3.ProcessingRequest {
	t.Helper()
	all := &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{}}
	for namespace, fields := range metadata {
		s, err := structpb.NewStruct(fields.(map[string]any))
		require.NoError(t, err)
		all.FilterMetadata[namespace] = s
	}
	for _, m := range ms {
		m.MetadataContext = all
	}
	return ms
}

func TestAnIdentityIsReadFromMetadata(t *testing.T) {
	t.Parallel()
	claims := map[string]any{"tenant": "acme", "models": []any{"m", "n"}}
	for name, c := range map[string]struct {
		path     []string
		metadata map[string]any
		want     map[string]any // nil: none
	}{
		"a namespace":       {path: []string{"auth"}, metadata: map[string]any{"other": map[string]any{}, "auth": claims}, want: claims},
		"a key below":       {path: []string{"auth", "claims"}, metadata: map[string]any{"auth": map[string]any{"claims": claims}}, want: claims},
		"two keys below":    {path: []string{"auth", "a", "b"}, metadata: map[string]any{"auth": map[string]any{"a": map[string]any{"b": claims}}}, want: claims},
		"none":              {path: []string{"auth"}, metadata: map[string]any{"other": claims}},
		"no metadata":       {path: []string{"auth"}},
		"no key":            {path: []string{"auth", "claims"}, metadata: map[string]any{"auth": claims}},
		"a key with a text": {path: []string{"auth", "tenant"}, metadata: map[string]any{"auth": claims}},
		"no option":         {metadata: map[string]any{"auth": claims}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				var got *structpb.Struct
				asked := 0
				r.authenticate = func(c Credentials) (fakeCall, *refusal.Refusal) {
					got = c.Metadata
					asked++
					return fakeCall{}, refusal.Unauthorized("")
				}
				// Headers with the same names say nothing.
				r.ask(r.t, identified(r.t, extproctest.Request(chatPath, `{"model":"m"}`, "auth", "x", "tenant", "x"), c.metadata))
				require.Equal(t, 1, asked)
				if c.want == nil {
					require.Nil(t, got)
					return
				}
				require.Equal(t, c.want, got.AsMap())
			}, func(o *Options) { o.IdentityMetadata = c.path })
		})
	}
}

// Only the edge's pass has metadata of the caller.
func TestTheReholdLaneKeepsTheIdentity(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		r.authenticate = func(c Credentials) (fakeCall, *refusal.Refusal) {
			if c.Metadata == nil {
				return fakeCall{}, refusal.Unauthorized("")
			}
			return fakeCall{caller: Caller{KeyID: c.Metadata.GetFields()["key_id"].GetStringValue()}}, nil
		}
		r.slots.up(engineA, 1)
		id := uuid.NewString()
		x := r.ask(t, identified(t, extproctest.Request(chatPath, `{"model":"m"}`, headerRequestID, id), map[string]any{"auth": map[string]any{"key_id": "k"}}))
		require.Contains(t, x.Events()[0], "serve on ")
		_ = x.Stream.CloseSend()
		r.slots.up(engineB, 1)
		x = r.again(t, id, engineA, 0)
		requireServed(t, x, "0s", engineB)
		record, end := r.logStream(t, envoy.LogEdge)
		record(id, "native")
		end()
		require.Equal(t, "k", r.records[0].Request.Caller.KeyID)
	}, func(o *Options) { o.IdentityMetadata = []string{"auth"} })
}
