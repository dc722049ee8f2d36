// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMain is also the parent that is killed: it starts a command and waits.
func TestMain(m *testing.M) {
	command := os.Getenv("TEST_COMMAND")
	if command == "" {
		os.Exit(m.Run())
	}
	guardPause = "0.2"
	cmd := exec.Command("/bin/sh", "-c", command)
	out, err := cmd.StdoutPipe()
	if err == nil {
		_, err = Start(cmd)
	}
	if err == nil {
		_, err = io.Copy(os.Stdout, out)
	}
	fmt.Fprintln(os.Stderr, err)
}

func TestNothingIsLeftOfAChildWhoseParentIsKilled(t *testing.T) {
	t.Parallel()
	for name, command := range map[string]string{
		"child":                       "echo begun; exec sleep 600",
		"what a child has started":    "sleep 600 & echo begun; wait; true",
		"child that ignores SIGTERM":  "trap '' TERM; echo begun; while :; do sleep 600; done",
		"its child, which ignores it": "(trap '' TERM; exec sleep 600) & echo begun; wait",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			self, err := os.Executable()
			require.NoError(t, err)
			parent := exec.CommandContext(t.Context(), self)
			parent.Env = append(os.Environ(), "TEST_COMMAND="+command)
			out, err := parent.StdoutPipe()
			require.NoError(t, err)
			// Whatever is started inherits one end of it.
			end, held, err := os.Pipe()
			require.NoError(t, err)
			parent.ExtraFiles = []*os.File{held}
			require.NoError(t, parent.Start())
			require.NoError(t, held.Close())
			_, err = bufio.NewReader(out).ReadString('\n')
			require.NoError(t, err)

			require.NoError(t, parent.Process.Kill())
			_ = parent.Wait()
			require.NoError(t, end.SetReadDeadline(time.Now().Add(30*time.Second)))
			_, err = end.Read(make([]byte, 1))
			require.ErrorIs(t, err, io.EOF, "something is left")
		})
	}
}

func TestGuardIsDismissedWhenTheChildHasEnded(t *testing.T) {
	p, err := Start(exec.CommandContext(t.Context(), "/bin/sh", "-c", "exit 3"))
	require.NoError(t, err)
	<-p.Done()
	require.EqualError(t, p.Err(), "exit status 3")
	lists, err := filepath.Glob("/proc/self/task/*/children")
	require.NoError(t, err)
	require.NotEmpty(t, lists)
	for _, list := range lists {
		children, _ := os.ReadFile(list)
		require.Empty(t, string(children))
	}
}
