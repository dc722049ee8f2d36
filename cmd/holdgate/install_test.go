// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kballard/go-shellquote"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/config"
)

const units = "../../examples/systemd"

// installed returns the text of a file of the examples for systemd.
func installed(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(units, name))
	require.NoError(t, err)
	return string(text)
}

// setting returns the only value of a name in a unit.
func setting(t *testing.T, unit, name string) string {
	t.Helper()
	var values []string
	for line := range strings.Lines(strings.ReplaceAll(unit, "\\\n", " ")) {
		if value, ok := strings.CutPrefix(line, name+"="); ok {
			values = append(values, strings.TrimSpace(value))
		}
	}
	require.Len(t, values, 1, name)
	return values[0]
}

// command returns the command of a unit's ExecStart=, with its flags set.
func command(t *testing.T, unit string) *cobra.Command {
	t.Helper()
	line := setting(t, unit, "ExecStart")
	words, err := shellquote.Split(line)
	require.NoError(t, err)
	require.Equal(t, "/usr/local/bin/holdgate", words[0])
	cmd, rest, err := newRootCommand().Find(words[1:])
	require.NoError(t, err)
	require.NoError(t, cmd.ParseFlags(rest), line)
	return cmd
}

// The router's unit and its file are settings that serve accepts, and the unit provides the files
// and directories that they name.
func TestTheUnitOfServe(t *testing.T) {
	t.Parallel()
	unit := installed(t, "holdgate-serve.service")
	words := strings.Fields(setting(t, unit, "ExecStart"))
	c := config.Serve{}
	var file string
	cmd := &cobra.Command{}
	serveFlags(cmd, &c, &file)
	require.NoError(t, cmd.ParseFlags(words[2:]))
	require.Equal(t, "/etc/holdgate/serve.yaml", file)
	require.NoError(t, readSettings(cmd, &c, filepath.Join(units, "serve.yaml")))

	require.True(t, c.Takeover, "systemctl reload needs it")
	require.Equal(t, "/bin/kill -USR2 $MAINPID", setting(t, unit, "ExecReload"))
	require.Equal(t, "all", setting(t, unit, "NotifyAccess"))
	require.Equal(t, "%d/agent-tokens", c.AgentsTokenFile)
	require.Equal(t, "%d/admin-token", c.AdminTokenFile)
	for _, name := range []string{"agent-tokens", "admin-token"} {
		require.Contains(t, unit, "LoadCredential="+name+":/etc/holdgate/"+name+"\n")
	}
	for _, path := range []string{c.MapFile, c.AuditFile} {
		require.Equal(t, "/var/lib/"+setting(t, unit, "StateDirectory"), filepath.Dir(path))
	}
	for _, socket := range append(slices.Clone(c.EnvoyAdmin), c.ExtProcListen, "unix://"+c.TakeoverPath()) {
		require.Equal(t, "unix:///run/"+setting(t, unit, "RuntimeDirectory"), "unix://"+filepath.Dir(strings.TrimPrefix(socket, "unix://")))
	}
	require.Equal(t, "330", setting(t, unit, "TimeoutStopSec"))
	require.Less(t, c.DrainTime().Seconds(), 330.0)
	envoy := installed(t, "holdgate-envoy.service")
	for _, name := range []string{"User", "RuntimeDirectory", "RuntimeDirectoryMode", "RuntimeDirectoryPreserve", "UMask"} {
		require.Equal(t, setting(t, unit, name), setting(t, envoy, name))
	}
}

// The unit of agents, with the flags of its file, gives settings that an agent accepts.
func TestTheUnitOfAgents(t *testing.T) {
	t.Parallel()
	unit := strings.ReplaceAll(installed(t, "holdgate-agent@.service"), "$AGENT_FLAGS", setting(t, installed(t, "agent.conf"), "AGENT_FLAGS"))
	cmd := command(t, unit)
	require.Equal(t, "%d/token", cmd.Flags().Lookup("token-file").Value.String())
	require.Equal(t, "%H-%i", cmd.Flags().Lookup("id").Value.String())
	require.Equal(t, "[llama-3-70b]", cmd.Flags().Lookup("model").Value.String())
	require.Contains(t, unit, "LoadCredential=token:")
}

func TestTheUnitOfUp(t *testing.T) {
	t.Parallel()
	unit := installed(t, "holdgate-up.service")
	cmd := command(t, unit)
	require.Equal(t, "up", cmd.Name())
	require.Equal(t, []string{"/etc/holdgate/models.yaml"}, cmd.Flags().Args())
	require.Equal(t, "/run/"+setting(t, unit, "RuntimeDirectory"), cmd.Flags().Lookup("dir").Value.String())
}
