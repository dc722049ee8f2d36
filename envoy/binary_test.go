// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// script writes an executable that prints text.
func script(t *testing.T, dir, text string) string {
	t.Helper()
	path := filepath.Join(dir, "envoy")
	body := "#!/bin/sh\ncat <<'EOF'\n" + text + "\nEOF\n"
	require.NoError(t, os.WriteFile(path, []byte(body), 0o700))
	return path
}

func TestFindTakesTheNamedBinaryThenTheOneOnPath(t *testing.T) { //nolint:paralleltest // it sets the environment.
	const says = "\nenvoy  version: 9e5580933739775e8bce696a57a2e1bc99368f23/%/Clean/RELEASE/BoringSSL\n"
	named := script(t, t.TempDir(), strings.Replace(says, "%", "1.41.0-dev", 1))
	dir := t.TempDir()
	onPath := script(t, dir, strings.Replace(says, "%", "1.37.0", 1))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))

	t.Setenv(BinaryVariable, "")
	b, err := Find(t.Context())
	require.NoError(t, err)
	require.Equal(t, Binary{Path: onPath, Version: "1.37.0"}, b)

	t.Setenv(BinaryVariable, named)
	b, err = Find(t.Context())
	require.NoError(t, err)
	require.Equal(t, Binary{Path: named, Version: "1.41.0-dev"}, b)
}

func TestFindSaysWhatIsWrongAndWhatToDo(t *testing.T) { //nolint:paralleltest // it sets the environment.
	path := script(t, t.TempDir(), "envoy  version: abc/1.36.4/Clean/RELEASE/BoringSSL")
	t.Setenv(BinaryVariable, path)
	_, err := Find(t.Context())
	require.EqualError(t, err, path+" is Envoy 1.36.4, and Holdgate needs 1.37 or newer: install a newer one and put it on PATH or name it in HOLDGATE_ENVOY")

	t.Setenv(BinaryVariable, script(t, t.TempDir(), "something else"))
	_, err = Find(t.Context())
	require.ErrorContains(t, err, "no Envoy version in its output:\nsomething else")

	failing := filepath.Join(t.TempDir(), "envoy")
	require.NoError(t, os.WriteFile(failing, []byte("#!/bin/sh\necho broken >&2\nexit 3\n"), 0o700))
	t.Setenv(BinaryVariable, failing)
	_, err = Find(t.Context())
	require.ErrorContains(t, err, "exit status 3:\nbroken")
	require.NotErrorIs(t, err, ErrNoBinary)

	t.Setenv(BinaryVariable, filepath.Join(t.TempDir(), "nothing"))
	_, err = Find(t.Context())
	require.ErrorIs(t, err, ErrNoBinary)
	require.ErrorContains(t, err, "HOLDGATE_ENVOY")

	t.Setenv(BinaryVariable, "")
	t.Setenv("PATH", t.TempDir())
	_, err = Find(t.Context())
	require.ErrorIs(t, err, ErrNoBinary)
	require.ErrorContains(t, err, "set HOLDGATE_ENVOY to an Envoy of 1.37 or newer")
}

func TestTheFloorIsComparedByNumber(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"1.37.0", "1.40.0", "1.100.0", "2.0.0", "1.37.0-dev"} {
		require.NoError(t, checkFloor(version, "envoy"), version)
	}
	for _, version := range []string{"1.36.9", "1.4.0", "0.99.0"} {
		require.ErrorContains(t, checkFloor(version, "envoy"), "needs 1.37 or newer", version)
	}
	require.Error(t, checkFloor("99999999999999999999.1.0", "envoy"))
}

func TestStartRefusesWhatCannotRun(t *testing.T) {
	t.Parallel()
	_, err := Binary{Path: "/nowhere/envoy"}.Start(t.Context(), Options{})
	require.ErrorContains(t, err, "Dir is required")
	_, err = Binary{Path: "/nowhere/envoy"}.Start(t.Context(), Options{Dir: t.TempDir()})
	require.ErrorContains(t, err, "starting /nowhere/envoy")
	_, err = Binary{}.Start(t.Context(), Options{Dir: filepath.Join(t.TempDir(), "missing")})
	require.ErrorContains(t, err, "writing the bootstrap")
}

func TestStartTellsTheEndOfTheLogWhenTheProcessEnds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := Binary{Path: script(t, dir, strings.Repeat("early\n", 2000)+"the last line"), Version: "1.40.0"}
	_, err := b.Start(t.Context(), Options{Dir: dir, Log: io.Discard})
	require.ErrorContains(t, err, "starting Envoy 1.40.0: it ended: exit status 0:\n")
	require.ErrorContains(t, err, "the last line")
	require.Less(t, len(err.Error()), tailSize+200)
}

func TestTheEdgesAddressIsTakenOnceItHasAPort(t *testing.T) {
	t.Parallel()
	list := func(port string) []byte {
		return []byte(`{"listener_statuses":[
			{"name":"relay","local_address":{"pipe":{"path":"/x"}}},
			{"name":"edge","local_address":{"socket_address":{"address":"::1","port_value":` + port + `}}}]}`)
	}
	got, err := edgeAddress(list("8080"))
	require.NoError(t, err)
	require.Equal(t, "[::1]:8080", got)
	_, err = edgeAddress(list("0"))
	require.ErrorIs(t, err, errNotReady)
	_, err = edgeAddress([]byte("{"))
	require.ErrorContains(t, err, "reading the list of listeners")
	got, err = edgeAddress([]byte(`{}`))
	require.NoError(t, err)
	require.Empty(t, got, "a bootstrap without a listener of that name")
}

func TestTheTailPassesEverythingOnAndKeepsTheEnd(t *testing.T) {
	t.Parallel()
	var all bytes.Buffer
	log := &logTail{next: &all}
	for i := range 3 * tailSize {
		n, err := log.Write([]byte{byte('a' + i%26), '\n'})
		require.NoError(t, err)
		require.Equal(t, 2, n)
	}
	require.Equal(t, 6*tailSize, all.Len())
	require.Equal(t, all.Bytes()[5*tailSize:], log.bytes())
}
