// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"net/http"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/extproctest"
	"github.com/holdgate/holdgate/internal/refusal"
)

func TestARefusalHasItsStatusHeadersAndBody(t *testing.T) {
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

// A client that does not follow a redirect shows the error in its body.
func TestARedirectSaysWhatItIs(t *testing.T) {
	t.Parallel()
	const object = `"code":"redirected","message":"model m is served by site s-b: follow the Location of this answer","source":"router"}}`
	for path, want := range map[string]string{
		chatPath:        `{"redirect":{"site":"s-b"},"error":{` + object,
		"/v1/responses": `{"redirect":{"site":"s-b"},"error":{` + object,
		messagesPath:    `{"redirect":{"site":"s-b"},"type":"error","error":{"type":"api_error",` + object,
	} {
		bubble(t, func(r *rig) {
			t := r.t
			r.decide = func(*Request) Decision {
				return Decision{Redirect: &Redirect{Site: "s-b", Location: "https://b.example" + path}}
			}
			r.ask(t, extproctest.Request(path, `{"model":"m"}`)).RequireEnded(t, "0s 307 "+want)
		})
	}
}
