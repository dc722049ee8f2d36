// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/certs/certstest"
	"github.com/holdgate/holdgate/internal/config"
	"github.com/holdgate/holdgate/internal/reload"
)

// loaded returns an App that has loaded its files, and what it has logged.
func loaded(t *testing.T, flags ...string) (a *App, log *bytes.Buffer, err error) {
	t.Helper()
	c := &config.Serve{}
	set := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	c.Flags(set)
	require.NoError(t, set.Parse(flags))
	require.NoError(t, c.Validate())
	log = &bytes.Buffer{}
	a = &App{c: c, log: zerolog.New(log)}
	return a, log, a.loadFiles(reload.NewMetrics("x_", prometheus.NewRegistry()))
}

func TestTheStartSaysWhichHoldsAreSilent(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	require.NoError(t, os.WriteFile(file, []byte("models: {a: {destination: route}, b: {destination: replica}, c: {}, d: {destination: endpoint}}"), 0o600))
	const policy, byRoute, gateway = "--policy-file=", "--destination=route", "--relay=https://gateway.example.com"
	for name, c := range map[string]struct {
		flags []string
		want  string // empty: nothing
	}{
		"the default":                     {nil, ""},
		"no keepalives anyway":            {[]string{byRoute, "--wake-keepalive=0s"}, ""},
		"all by route":                    {[]string{byRoute}, `"destination":"route","models":[],"all_others":true`},
		"all as a picker":                 {[]string{"--destination=endpoint"}, `"destination":"endpoint","models":[],"all_others":true`},
		"a model as a picker":             {[]string{policy + file}, `"destination":"endpoint","models":["d"],"all_others":false`},
		"all by route, with the gateway":  {[]string{byRoute, gateway}, ""},
		"the gateway only":                {[]string{gateway}, `"destination":"replica","models":[],"all_others":true`},
		"a model by route":                {[]string{policy + file}, `"destination":"route","models":["a"],"all_others":false`},
		"a model to a replica by gateway": {[]string{policy + file, byRoute, gateway}, `"destination":"replica","models":["b"],"all_others":false`},
	} {
		a, log, err := loaded(t, c.flags...)
		require.NoError(t, err, name)
		if c.want == "" {
			require.Empty(t, log.String(), name)
		} else {
			require.Contains(t, log.String(), c.want, name)
			require.Contains(t, log.String(), "get no keepalives", name)
		}
		require.Len(t, Warnings(a.c), strings.Count(log.String(), "get no keepalives"), "the check says the same")
	}
	a, _, err := loaded(t, policy+file)
	require.NoError(t, err)
	require.Equal(t, []string{
		`destination endpoint: held requests of ["d"] get no keepalives: set --relay to the URL of the gateway's listener for clients`,
		`destination route: held requests of ["a"] get no keepalives: set --relay to the URL of the gateway's listener for clients`,
	}, Warnings(a.c))
	require.NoError(t, os.WriteFile(file, []byte("["), 0o600))
	require.Empty(t, Warnings(a.c), "that is an error of the check")
	a.c.PolicyFile += ".missing"
	require.Empty(t, Warnings(a.c))
}

func TestTheRelayIsALaneOrAGateway(t *testing.T) {
	t.Parallel()
	for relay, isGateway := range map[string]bool{"--relay=unix:///a": false, "--relay=127.0.0.1:1": false, "--relay=http://127.0.0.1:1": true} {
		a, _, err := loaded(t, relay)
		require.NoError(t, err)
		lane, gateway := a.relays()
		require.Equal(t, isGateway, lane == nil, relay)
		require.Equal(t, isGateway, gateway != nil, relay)
	}
}

func TestTheGatewaysAuthorities(t *testing.T) {
	t.Parallel()
	const relay = "--relay=https://gateway.example.com"
	a, _, err := loaded(t, relay, "--relay-ca-file="+certstest.New(t).File)
	require.NoError(t, err)
	require.NotNil(t, a.relayCAs)
	bad := filepath.Join(t.TempDir(), "ca.pem")
	_, _, err = loaded(t, relay, "--relay-ca-file="+bad)
	require.ErrorContains(t, err, "--relay-ca-file: ")
	require.NoError(t, os.WriteFile(bad, []byte("x"), 0o600))
	a, _, err = loaded(t, relay, "--relay-ca-file="+bad)
	require.ErrorContains(t, err, "--relay-ca-file: reading the authorities of the gateway: "+bad+" has no certificate in PEM")
	require.ErrorContains(t, Check(a.c), "--relay-ca-file: reading the authorities of the gateway: "+bad+" has no certificate in PEM")
}
