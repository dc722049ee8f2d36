// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"testing"

	"github.com/holdgate/holdgate/extproc/extproctest"
)

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
