// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/config"
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

func TestAnAddressThatCannotBeHadComesWithAdvice(t *testing.T) {
	t.Parallel()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	c := &config.Serve{AdminListen: l.Addr().String()}
	err = new(listeners).open(t.Context(), c, portLimits{}, nil)
	require.ErrorContains(t, err, "--admin-listen "+c.AdminListen)
	require.ErrorContains(t, err, "address already in use: end what listens there, or choose another address")

	err = withAdvice(fmt.Errorf("making the socket's directory: %w", os.ErrPermission))
	require.ErrorIs(t, err, os.ErrPermission)
	require.ErrorContains(t, err, "such as a socket below $XDG_RUNTIME_DIR")
	other := errors.New("another")
	require.Equal(t, other, withAdvice(other))
}
