// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/admin"
	"github.com/holdgate/holdgate/sitemap"
)

const mapText = `{"generation":3,"sites":[{"id":"us","url":"https://us.example"}],"placements":[` +
	`{"model":"m","kind":"chat","site":"here","scale_from_zero":true},{"model":"m","kind":"chat","site":"us"}]}`

// runMap runs holdgate map with args and gives what it printed.
func runMap(t *testing.T, stdin string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd := newMapCommand()
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetOut(&out)
	cmd.SetErr(&errOut)
	cmd.SetArgs(args)
	err = cmd.ExecuteContext(t.Context())
	return out.String(), errOut.String(), err
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// adminAPI starts the admin API of a router and gives the flags to reach it.
func adminAPI(t *testing.T) []string {
	t.Helper()
	s := httptest.NewServer(admin.Handler(admin.Deps{
		Tokens: []string{"secret"}, Maps: sitemap.NewStore("here", nil), Metrics: prometheus.NewRegistry(),
		Ready: func() string { return "" }, Log: zerolog.Nop(),
	}))
	t.Cleanup(s.Close)
	return []string{"--admin", s.URL, "--token-file", writeFile(t, "secret\n")}
}

func TestMapPushAndGet(t *testing.T) {
	t.Parallel()
	api := adminAPI(t)
	run := func(stdin string, args ...string) (string, string, error) {
		return runMap(t, stdin, append(args, api...)...)
	}
	_, _, err := run("", "get")
	require.ErrorContains(t, err, "map_not_loaded")
	require.Equal(t, 1, exitCode(err))

	out, _, err := run("", "push", "-f", writeFile(t, mapText))
	require.NoError(t, err)
	require.Equal(t, "applied: generation 3, 1 site, 2 placements, 1 model that may be held here\n", out)
	out, _, err = run(mapText, "push", "-f", "-")
	require.NoError(t, err)
	require.Equal(t, "unchanged: generation 3, 1 site, 2 placements, 1 model that may be held here\n", out)

	out, from, err := run("", "get")
	require.NoError(t, err)
	require.Equal(t, mapText+"\n", out)
	require.Regexp(t, `^pushed \d+s ago, ETag "[0-9a-f]+"\n$`, from)
	_, tag, found := strings.Cut(strings.TrimSpace(from), "ETag ")
	require.True(t, found)

	older := strings.Replace(mapText, `3`, `2`, 1)
	_, _, err = run(older, "push", "-f", "-")
	require.ErrorContains(t, err, "generation 2 is lower than 3")
	require.Equal(t, 1, exitCode(err))
	_, _, err = run(older, "push", "-f", "-", "--force", "--if-match", `"x"`)
	require.ErrorContains(t, err, "map_changed")
	out, _, err = run(older, "push", "-f", "-", "--force", "--if-match", tag)
	require.NoError(t, err)
	require.Contains(t, out, "applied: generation 2")
}

func TestMapPushPrintsEveryProblem(t *testing.T) {
	t.Parallel()
	out, problems, err := runMap(t, `{"x": 1, "placements": [{"model": "m", "kind": "chat", "site": "fr", "hold_budget": "2h"}]}`,
		append([]string{"push", "-f", "-"}, adminAPI(t)...)...)
	require.EqualError(t, err, "the router refused the map: 3 problems")
	require.Equal(t, 1, exitCode(err))
	require.Empty(t, out)
	require.Equal(t, "x: is not a known field\n"+
		"placements[0].hold_budget: must be a Go duration above 0 and at most 1h, like 240s, not \"2h\"\n"+
		"placements[0].site: is not this site and not in sites: \"fr\"\n", problems)
}

func TestMapPushNeedsTheToken(t *testing.T) {
	t.Parallel()
	_, _, err := runMap(t, mapText, "push", "-f", "-", "--admin", adminAPI(t)[1])
	require.ErrorContains(t, err, "unauthorized")
	require.Equal(t, 1, exitCode(err))
}

func TestMapCommandsNameTheBadFlag(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"-f is required": {"push"},
		"--admin: must":  {"push", "-f", "-", "--admin", "router:9003"},
		"--token-file: ": {"get", "--token-file", filepath.Join(t.TempDir(), "none")},
		"takes one file": {"check"},
	} {
		_, _, err := runMap(t, "", args...)
		require.ErrorContains(t, err, want)
		require.Equal(t, 2, exitCode(err), want)
	}
}

func TestMapCheck(t *testing.T) {
	t.Parallel()
	file := writeFile(t, mapText)
	out, _, err := runMap(t, "", "check", file, "--site-id", "here")
	require.NoError(t, err)
	require.Equal(t, "ok: generation 3, 1 site, 2 placements, 1 model that may be held at here\n", out)

	out, _, err = runMap(t, mapText, "check", "-")
	require.EqualError(t, err, "the map has 1 problem")
	require.Equal(t, 1, exitCode(err))
	require.Equal(t, "placements[0].site: is not this site and not in sites: \"here\"\n"+
		"--site-id names a site that needs no entry in sites\n", out)

	out, _, err = runMap(t, "{}", "check", "-")
	require.NoError(t, err)
	require.Equal(t, "ok: generation 0, 0 sites, 0 placements\n", out)

	out, _, err = runMap(t, `{"sites": [{}], "x": 1}`, "check", "-", "--site-id", "here")
	require.EqualError(t, err, "the map has 3 problems")
	require.Equal(t, "sites[0].id: is missing\nsites[0].url: is missing\nx: is not a known field\n", out)

	_, _, err = runMap(t, strings.Repeat(" ", sitemap.MaxBytes+1), "check", "-")
	require.ErrorIs(t, err, sitemap.ErrTooLarge)
	_, _, err = runMap(t, "", "check", filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
	require.Equal(t, 1, exitCode(err))
}
