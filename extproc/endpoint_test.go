// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/extproc/extproctest"
)

func TestAWrongPathNamesTheRightOne(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/v1/v1/chat/completions":    "/v1/chat/completions",
		"/v1/v1/v1/messages":         "/v1/messages",
		"//v1/chat/completions":      "/v1/chat/completions",
		"/v1//chat//completions":     "/v1/chat/completions",
		"/v1/chat/completions/":      "/v1/chat/completions",
		"/chat/completions":          "/v1/chat/completions",
		"/messages/count_tokens":     "/v1/messages/count_tokens",
		"/v1/v1/models":              "/v1/models",
		"//v1/models/":               "/v1/models",
		"/v1/v1/models/m":            "/v1/models/{model}",
		"/":                          "",
		"/v1":                        "",
		"/v1/v1":                     "",
		"/v1/files":                  "",
		"/api/v1/chat/completions":   "",
		"/v1/chat/completions/extra": "",
	} {
		require.Equal(t, want, meantPath(path), path)
	}
	bubble(t, func(r *rig) {
		r.ask(r.t, extproctest.Request("/v1/v1/messages?beta=true", `{"model":"m"}`)).RequireEnded(r.t,
			`0s 404 {"error":{"code":"not_found","message":"this path is not an endpoint of the router: use /v1/messages","source":"router"}}`)
	})
}
