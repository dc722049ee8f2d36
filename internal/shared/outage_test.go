// SPDX-License-Identifier: Apache-2.0

package shared_test

import (
	"bytes"
	"context"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/polltest"
	"github.com/holdgate/holdgate/internal/shared"
	"github.com/holdgate/holdgate/internal/shared/valkeytest"
)

// logBuffer is a log that a test reads while it is written.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// runWithLog runs a client until the test ends.
func runWithLog(t *testing.T, a shared.Address) (*shared.Client, *logBuffer) {
	t.Helper()
	text := &logBuffer{}
	c, err := shared.New(shared.Options{Address: a, Registerer: prometheus.NewRegistry(), Log: zerolog.New(text)})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	running.Go(func() { c.Run(ctx) })
	return c, text
}

// An operator reads that the password is wrong, once, also if the server was away before; and
// the right password is used without a restart.
func TestAWrongPasswordIsSaidOnce(t *testing.T) {
	server := valkeytest.StartReal(t, "--requirepass", "secret")
	server.Stop()
	file := passwordFile(t, "wrong\n")
	c, text := runWithLog(t, shared.Address{URL: server.URL(), PasswordFile: file})
	polltest.Until(t, "the router says that the server is away", func() bool {
		return strings.Contains(text.String(), "the server does not answer")
	})

	server.Restart()
	polltest.Until(t, "the router says that the password is wrong", func() bool {
		return strings.Contains(text.String(), "--shared-password-file must have the server's password")
	})
	require.False(t, c.Up())
	require.NoError(t, os.WriteFile(file, []byte("secret\n"), 0o600))
	polltest.Until(t, "the client is up", c.Up)
	require.Equal(t, 1, strings.Count(text.String(), "the server does not answer"), text)
	require.Equal(t, 1, strings.Count(text.String(), "the server refuses calls"), text)
	require.NotContains(t, text.String(), "wrong\\n")
}

// An operator reads what the server's user lacks.
func TestAUserWithoutRightsIsSaid(t *testing.T) {
	for name, rights := range map[string][]string{
		"keys":     {"~{other*", "&{other*", "+@all"},
		"commands": {"~{site-1*", "&{site-1*", "+eval", "+evalsha", "+publish", "+subscribe"},
	} {
		t.Run(name, func(t *testing.T) {
			server := valkeytest.StartReal(t, append([]string{"--user", "me", "on", ">mine"}, rights...)...)
			_, text := runWithLog(t, shared.Address{URL: server.URL() + "?prefix=site-1", PasswordFile: passwordFile(t, "me\nmine\n")})
			polltest.Until(t, "the router says what the user lacks", func() bool {
				return strings.Contains(text.String(), "~{site-1* &{site-1* +@all")
			})
		})
	}
}
