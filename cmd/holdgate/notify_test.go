// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// notifySocket sets NOTIFY_SOCKET and returns a function that returns the next message.
func notifySocket(t *testing.T) (told func() string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenPacket("unixgram", path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return func() string {
		t.Helper()
		buf := make([]byte, 1024)
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
		n, _, err := conn.ReadFrom(buf)
		require.NoError(t, err)
		return string(buf[:n])
	}
}

func TestSystemdIsToldTheState(t *testing.T) {
	told := notifySocket(t)
	var log bytes.Buffer
	notifyMain(zerolog.New(&log))
	notifyReady(zerolog.New(&log))
	notifyStopping(zerolog.New(&log))
	require.Equal(t, fmt.Sprintf("MAINPID=%d\nREADY=1", os.Getpid()), told())
	require.Equal(t, "READY=1", told())
	require.Equal(t, "STOPPING=1", told())
	require.Empty(t, log.String())
}

func TestASocketOfSystemdThatIsGoneIsLogged(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "none"))
	var log bytes.Buffer
	notifyReady(zerolog.New(&log))
	require.Contains(t, log.String(), "telling systemd the state of the service")
}

// An agent is ready when it has begun, also without a router, so that a machine starts whatever
// the others do. One whose settings are wrong never is.
func TestAnAgentTellsSystemd(t *testing.T) {
	told := notifySocket(t)
	require.Error(t, runAgent(t, "--router", "127.0.0.1:1", "--backend-url", "http://127.0.0.1:1", "--tls-ca-file", "/nonexistent"))

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := newAgentCommand()
	cmd.SetArgs([]string{"--router", "127.0.0.1:1", "--backend-url", "http://127.0.0.1:1", "--model", "m"})
	cmd.SetOut(&bytes.Buffer{})
	cmd.SetErr(&bytes.Buffer{})
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	require.Equal(t, "READY=1", told())
	cancel()
	require.Equal(t, "STOPPING=1", told())
	require.NoError(t, <-ended)
}
