// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEnvoyCheckReadsARunningGateway(t *testing.T) {
	t.Parallel()
	const file = "../../envoy/testdata/dump.yaml"
	out, err := runEnvoy(t, "", "check", file)
	require.NoError(t, err)
	require.Equal(t, "checked for the destination route\nok\n", out, "a dump is not validated")

	text, err := os.ReadFile(file)
	require.NoError(t, err)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(strings.Replace(string(text), "name: chat", `name: "chat\u001b[2J\nok"`, 1)))
	}))
	t.Cleanup(server.Close)
	out, err = runEnvoy(t, "", "check", server.URL, "--max-request-bytes", "64MiB", "--wake-hold-budget", "1h")
	require.EqualError(t, err, "1 of the settings would break held requests")
	require.Equal(t, `checked for the destination route
warning: listener http: virtual host llm.example.com: route chat\x1b[2J\nok: per_request_buffer_limit_bytes: or what takes its place is 11534336, should be above the largest body of 67108864: larger requests are not tried again, and those with trailers that are not relayed are answered with 413
error: listener http: stream_idle_timeout: is 6m0s, must be 0s or above the hold budget of 1h0m0s: it cuts a silent hold
`, out, "no character of a name reaches the terminal as it is")

	out, err = runEnvoy(t, string(text), "check", "-", "--json", "--filter", "other")
	require.EqualError(t, err, "1 of the settings would break held requests")
	require.JSONEq(t, `{"destination": "route", "findings": [{"level": "error", "path": "listeners", "text": "have no ext_proc filter with the name other: nothing would be held"}]}`, out)
	out, err = runEnvoy(t, string(text), "check", "-", "--json")
	require.NoError(t, err)
	require.JSONEq(t, `{"destination": "route", "findings": []}`, out)

	for _, flags := range [][]string{{"--destination", "here"}, {"--max-request-bytes", "0"}} {
		_, err = runEnvoy(t, string(text), append([]string{"check", "-"}, flags...)...)
		require.ErrorContains(t, err, flags[0]+": must be ")
		require.Equal(t, 2, exitCode(err))
	}
	_, err = readAll(strings.NewReader("12345"), "f", 4)
	require.EqualError(t, err, "reading f: it has more than 4 bytes")
	_, err = runEnvoy(t, "", "check", "unix:///none/envoy.sock")
	require.ErrorContains(t, err, "asking Envoy for its config dump: ")
	require.ErrorContains(t, err, ": is that the address of its admin interface, which its bootstrap has in admin.address?")
	_, err = runEnvoy(t, "", "check", "127.0.0.1:19000")
	require.EqualError(t, err, "there is no file 127.0.0.1:19000; to check a running Envoy, use http://127.0.0.1:19000")
	require.Equal(t, 2, exitCode(err))
	_, err = runEnvoy(t, "", "check")
	require.ErrorContains(t, err, "takes one file, - for standard input, or the URL of a running Envoy's admin interface")
	require.Equal(t, 2, exitCode(err))
}
