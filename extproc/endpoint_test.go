// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"fmt"
	"os"
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

// docs/clients.md has every endpoint, and the status of a client that left.
func TestTheDocumentForClientsHasTheEndpoints(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/clients.md")
	require.NoError(t, err)
	for path, e := range endpoints {
		require.Contains(t, string(text), fmt.Sprintf("| `POST %s` | `%v` |", path, e.Kind))
	}
	require.Contains(t, string(text), fmt.Sprintf("| %d | |", StatusClientGone))
}
