// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kballard/go-shellquote"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

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

// The commands of docs/install.md are commands of this program with flags that exist, targets of
// the Makefile, and copies of files that exist to where their first line says.
func TestTheCommandsOfTheInstallPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/install.md")
	require.NoError(t, err)
	makefile, err := os.ReadFile("../../Makefile")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?ms)^```(\\w*)\n(.*?\n)```$").FindAllStringSubmatch(string(page), -1)
	require.GreaterOrEqual(t, len(blocks), 8)
	seen := map[string]int{}
	for _, block := range blocks {
		require.Equal(t, "sh", block[1])
		for line := range strings.Lines(block[2]) {
			words, err := shellquote.Split(line)
			require.NoError(t, err)
			for words[0] == "sudo" || strings.Contains(words[0], "=") {
				words = words[1:]
			}
			seen[filepath.Base(words[0])]++
			switch filepath.Base(words[0]) {
			case "holdgate":
				cmd, rest, err := newRootCommand().Find(words[1:])
				require.NoError(t, err, line)
				require.NoError(t, cmd.ParseFlags(rest), line)
			case "make":
				for _, target := range words[1:] {
					require.Contains(t, string(makefile), "\n"+target+": ", line)
				}
			case "install":
				installs(t, words[1:])
			case "systemctl":
				unitsExist(t, words[2:])
			case "docker":
				require.FileExists(t, filepath.Join("..", "..", words[3]))
			case "envoy", "systemd-sysusers", "sh", "curl":
			default:
				require.Fail(t, "not checked", line)
			}
		}
	}
	for _, name := range []string{"holdgate", "install", "systemctl", "docker"} {
		require.Positive(t, seen[name], name)
	}
}

// installs checks the arguments of a call of install. The first line of an example says where it
// goes.
func installs(t *testing.T, args []string) {
	t.Helper()
	target := args[len(args)-1]
	for _, file := range args[:len(args)-1] {
		if !strings.HasPrefix(file, "examples/") {
			continue // an option, its value, or a program that was built
		}
		text, err := os.ReadFile(filepath.Join("..", "..", file))
		require.NoError(t, err)
		path := target
		if strings.HasSuffix(target, "/") {
			path += filepath.Base(file)
		}
		require.True(t, strings.HasPrefix(string(text), "# "+path+":"), "%s says where it goes, and not to %s", file, path)
	}
}

// unitsExist checks the names in a call of systemctl.
func unitsExist(t *testing.T, names []string) {
	t.Helper()
	for _, name := range names {
		if name == "--now" {
			continue
		}
		if template, _, ok := strings.Cut(name, "@"); ok {
			name = template + "@"
		}
		require.FileExists(t, filepath.Join(units, name+".service"))
	}
}

// The check that docs/install.md tells to run accepts the settings of the router's unit.
func TestTheInstallPageNamesTheSettingsOfTheUnit(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/install.md")
	require.NoError(t, err)
	flags := regexp.MustCompile(`(?m)^sudo holdgate check --config /etc/holdgate/serve.yaml (.*)$`).FindStringSubmatch(string(page))
	require.NotNil(t, flags)
	c := config.Serve{}
	var file string
	cmd := &cobra.Command{}
	serveFlags(cmd, &c, &file)
	require.NoError(t, cmd.ParseFlags(strings.Fields(flags[1])))
	require.NoError(t, readSettings(cmd, &c, filepath.Join(units, "serve.yaml")))
	for _, path := range []string{c.AgentsTokenFile, c.AdminTokenFile} {
		require.Contains(t, installed(t, "holdgate-serve.service"), "LoadCredential="+filepath.Base(path)+":"+path+"\n")
	}
	for _, file := range []string{"holdgate.sysusers", "agent.conf", "agent-exec.conf"} {
		require.Contains(t, string(page), "| `"+file+"` |")
	}
}

// The services of the compose file are commands of this program that it accepts.
func TestTheCommandsOfTheComposeFile(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../examples/compose/compose.yaml")
	require.NoError(t, err)
	var file struct {
		Services map[string]struct{ Entrypoint, Command []string }
	}
	require.NoError(t, yaml.Unmarshal(text, &file))
	found := 0
	for name, s := range file.Services {
		if !slices.Equal(s.Entrypoint, []string{"/usr/local/bin/holdgate"}) {
			continue
		}
		found++
		cmd, rest, err := newRootCommand().Find(s.Command)
		require.NoError(t, err, name)
		require.NoError(t, cmd.ParseFlags(rest), name)
		require.Empty(t, cmd.Flags().Args(), name)
	}
	require.Equal(t, 4, found)
	c := config.Serve{}
	var none string
	cmd := &cobra.Command{}
	serveFlags(cmd, &c, &none)
	require.NoError(t, cmd.ParseFlags(file.Services["holdgate"].Command[1:]))
	require.NoError(t, readSettings(cmd, &c, ""))
}
