// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"net/http"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/internal/refusal"
)

func TestRefusalsAsEnvoyGetsThem(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]*refusal.Refusal{
		"no more headers": refusal.ModelNotFound("m"),
		"Allow":           refusal.MethodNotAllowed("POST"),
		"Retry-After":     refusal.MapNotLoaded(),
		"of a quota":      refusal.RateLimited(17),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := refused(r, refusal.Anthropic)
			require.Equal(t, "local", m.GetDynamicMetadata().GetFields()[envoy.Namespace].GetStructValue().GetFields()["mode"].GetStringValue())
			answer := m.GetImmediateResponse()
			require.Equal(t, r.Status, int(answer.GetStatus().GetCode()))
			require.Equal(t, r.Body(refusal.Anthropic), answer.GetBody())
			got := http.Header{}
			for _, o := range answer.GetHeaders().GetSetHeaders() {
				got.Add(o.GetHeader().GetKey(), string(o.GetHeader().GetRawValue()))
			}
			want := http.Header{"Content-Type": {"application/json"}}
			if r.RetryAfter > 0 {
				want.Set("Retry-After", strconv.Itoa(r.RetryAfter))
			}
			if r.Status == http.StatusMethodNotAllowed {
				want.Set("Allow", "POST")
			}
			require.Equal(t, want, got)
			require.NoError(t, m.ValidateAll())
		})
	}
}

func TestKeepaliveForms(t *testing.T) {
	t.Parallel()
	const comment = ": keep-alive\n"
	require.Equal(t, comment, string(keepaliveForm(refusal.OpenAI, true)))
	require.Equal(t, comment, string(keepaliveForm(refusal.Responses, true)))
	require.Equal(t, comment+"event: ping\ndata: {\"type\": \"ping\"}\n\n", string(keepaliveForm(refusal.Anthropic, true)))
	for _, api := range []refusal.API{refusal.OpenAI, refusal.Anthropic, refusal.Responses} {
		require.Equal(t, " ", string(keepaliveForm(api, false)))
	}
}
