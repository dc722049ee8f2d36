// SPDX-License-Identifier: Apache-2.0

package app

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestASocketOfAnotherUserIsNotReplaced(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root gives a file to another user")
	}
	path := filepath.Join(t.TempDir(), "s")
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", path)
	require.NoError(t, err)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	require.NoError(t, os.Chown(path, 65534, -1))
	_, err = listen(t.Context(), "unix://"+path)
	require.ErrorContains(t, err, path+" was made by user ")
	_, err = os.Lstat(path)
	require.NoError(t, err, "it stays")

	require.NoError(t, os.Chown(path, 0, -1))
	l, err = listen(t.Context(), "unix://"+path)
	require.NoError(t, err, "one of our own is replaced")
	require.NoError(t, l.Close())
}
