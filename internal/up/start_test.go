// SPDX-License-Identifier: Apache-2.0

package up

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

const oneModel = `models: [{name: m, exec: "sh {port}"`

func TestASecondRunInADirectoryTouchesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	unlock, err := lock(dir)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "map.json"), []byte("the first one's"), 0o600))
	f, err := parse([]byte(oneModel + "}]"))
	require.NoError(t, err)
	err = Run(t.Context(), Options{File: f, Dir: dir, Log: zerolog.Nop()})
	require.ErrorContains(t, err, "--dir: "+dir+" is in use by another holdgate up")
	text, err := os.ReadFile(filepath.Join(dir, "map.json"))
	require.NoError(t, err)
	require.Equal(t, "the first one's", string(text))
	unlock()
	unlock, err = lock(dir)
	require.NoError(t, err)
	unlock()
}

func TestADirectoryWhoseNameIsTooLongIsSaidToBe(t *testing.T) {
	t.Parallel()
	r := &run{}
	r.Dir = "/" + strings.Repeat("d", 100)
	require.ErrorContains(t, r.checkSockets(), "--dir: the path of a unix socket can have at most 107 bytes")
	r.Dir = "/tmp"
	require.NoError(t, r.checkSockets())
}

func TestAdminListensAtTheUsualAddressUnlessItIsInUse(t *testing.T) { //nolint:paralleltest // one address
	require.Equal(t, "127.0.0.1:7", adminAddress(t.Context(), "127.0.0.1:7"))
	taken, err := new(net.ListenConfig).Listen(t.Context(), "tcp", usualAdmin)
	if err == nil {
		defer func() { require.NoError(t, taken.Close()) }()
	}
	require.Equal(t, "127.0.0.1:0", adminAddress(t.Context(), ""))
}

func TestHangUpEndsTheRunOrReachesServe(t *testing.T) {
	t.Parallel()
	f, err := parse([]byte(oneModel + "}]"))
	require.NoError(t, err)
	hangups := make(chan os.Signal, 1)
	r := &run{}
	r.File, r.Hangups = f, hangups
	ctx, end := context.WithCancel(t.Context())
	hangups <- os.Interrupt
	r.handleHangups(ctx, end)
	require.ErrorIs(t, ctx.Err(), context.Canceled)
}

func TestWakeFailsBeforeItsRequestsAreAnswered(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		oneModel + "}]":                                                      4*time.Minute + 50*time.Second,
		oneModel + ", hold_budget: 60s}]":                                    50 * time.Second,
		oneModel + ", hold_budget: 4s}]":                                     2 * time.Second,
		oneModel + ", hold_budget: 60s, wake_timeout: 5m}]":                  5 * time.Minute,
		"serve: {wake-hold-budget: 2m}\n" + oneModel + "}]":                  110 * time.Second,
		"serve: {wake-hold-budget: 2m}\n" + oneModel + ", hold_budget: 1m}]": 50 * time.Second,
	} {
		f, err := parse([]byte(text))
		require.NoError(t, err, text)
		require.Equal(t, want, f.Models[0].WakeTimeout, text)
	}
}

func TestFilesThatCannotBeMeant(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		oneModel + ", hold_budget: 1ns}]":        `models[0].hold_budget: must be a time such as 90s or 5m, at least 1s and at most 1h0m0s, is "1ns" (line 1)`,
		oneModel + ", kinds: []}]":               "models[0].kinds: at least one is needed, or leave it out for the engine's usual one (line 1)",
		"listen: 127.0.0.1:1":                    "needs models, or backends (line 1)",
		"backends: []":                           "backends: at least one is needed (line 1)",
		"backends: [{name: b}]":                  "backends[0]: needs url (line 1)",
		oneModel + ", wake: {url: ftp:x}}]":      "models[0].wake.url",
		"serve: {config: x}\n" + oneModel + "}]": "serve.config: is not for this file to set",
	} {
		_, err := parse([]byte(text))
		require.ErrorContains(t, err, want, text)
	}
}

func TestBackendsAndWebhooksAreTaken(t *testing.T) {
	t.Parallel()
	f, err := parse([]byte(`
backends:
- {name: far, url: "http://10.0.0.7:8000", models: [far], wake: {url: "https://hooks.example/far"}}
models:
- {name: m, exec: "sh {port}", wake: {url: "https://hooks.example/m", cooldown: 1m}}
`))
	require.NoError(t, err)
	require.YAMLEq(t, `backends: [{name: far, url: "http://10.0.0.7:8000", models: [far], wake: {url: "https://hooks.example/far"}}]`, string(f.backends))
	text, err := f.siteMap()
	require.NoError(t, err)
	require.JSONEq(t, `{"placements": [{"model": "m", "kind": "chat", "site": "local", "scale_from_zero": true,
		"wake": {"url": "https://hooks.example/m", "method": "POST", "cooldown": "1m0s"}}]}`, string(text))
	require.Empty(t, f.backendCAs)
	f, err = parse([]byte(`backends: [{name: far, url: "https://far.example"}]`))
	require.NoError(t, err)
	require.Equal(t, []string{"system"}, f.backendCAs, "its Envoy speaks TLS with it")
	text, err = f.siteMap()
	require.NoError(t, err)
	require.JSONEq(t, `{"placements": []}`, string(text))
}
