// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
)

// guardScript reads the id of a process group, and ends the group when its standard input
// ends: with SIGTERM, and with SIGKILL if the group is still there after five pauses of $1
// seconds.
const guardScript = `read -r group || exit 0
read -r _
kill -s TERM -- "-$group"
for _ in 1 2 3 4 5; do
	sleep "$1"
	kill -s 0 -- "-$group" || exit 0
done
kill -s KILL -- "-$group"`

// guardPause is $1 of guardScript. Tests make it shorter.
var guardPause = "1"

// guard is a shell process that ends a process group when this process has ended, even if it
// was killed: the pipe at the shell's standard input then has no writer.
type guard struct {
	cmd  *exec.Cmd
	pipe io.WriteCloser
}

// newGuard starts a guard that has no group yet. It returns nil if there is no shell.
func newGuard() *guard {
	cmd := exec.Command("/bin/sh", "-c", guardScript, "holdgate-guard", guardPause) //nolint:noctx // dismiss ends it
	// A signal to the group of this process must not end the guard.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	r, w, err := os.Pipe()
	if err != nil {
		return nil
	}
	defer func() { _ = r.Close() }()
	cmd.Stdin = r
	if err := cmd.Start(); err != nil {
		_ = w.Close()
		return nil
	}
	return &guard{cmd: cmd, pipe: w}
}

// watch sets the process group that the guard ends. g may be nil.
func (g *guard) watch(group int) {
	if g != nil {
		_, _ = fmt.Fprintln(g.pipe, group)
	}
}

// dismiss ends the guard without ending its group. g may be nil.
func (g *guard) dismiss() {
	if g == nil {
		return
	}
	_ = g.cmd.Process.Kill()
	_ = g.cmd.Wait()
	_ = g.pipe.Close()
}
