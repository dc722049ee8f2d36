// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
)

// guardScript reads the id of a process group, and ends the group when its standard
// input ends: in an orderly way at first.
const guardScript = `read -r group || exit 0
read -r _
kill -s TERM -- "-$group"
for _ in 1 2 3 4 5; do
	sleep 1
	kill -s 0 -- "-$group" || exit 0
done
kill -s KILL -- "-$group"`

// guard is a shell that ends a process group when this process is gone, however it
// ended: a pipe that nobody can write to any more says so.
type guard struct {
	cmd  *exec.Cmd
	pipe io.WriteCloser
}

// newGuard starts a guard without a group. On a machine without a shell there is
// none, which is nil.
func newGuard() *guard {
	cmd := exec.Command("/bin/sh", "-c", guardScript, "holdgate-guard") //nolint:noctx // dismiss ends it
	// What ends this process's group must not end the guard before its work.
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

// watch gives the guard its group.
func (g *guard) watch(group int) {
	if g != nil {
		_, _ = fmt.Fprintln(g.pipe, group)
	}
}

// dismiss ends the guard before it does anything.
func (g *guard) dismiss() {
	if g == nil {
		return
	}
	_ = g.cmd.Process.Kill()
	_ = g.cmd.Wait()
	_ = g.pipe.Close()
}
