// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// CheckProgram returns what is wrong with the program of a command that runs in dir, nil
// if nothing is.
func CheckProgram(program, dir string) error {
	path := program
	if dir != "" && strings.ContainsRune(program, filepath.Separator) && !filepath.IsAbs(program) {
		path = filepath.Join(dir, program) // as the start of a process does
	}
	if _, err := exec.LookPath(path); err != nil {
		return fmt.Errorf("%q is no program here and not on PATH", program)
	}
	return nil
}

// checkDir returns what is wrong with the directory of a command, nil if nothing is.
// Without a name it is that of this process.
func checkDir(dir string) error {
	if dir == "" {
		return nil
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return fmt.Errorf("%q is no directory", dir)
	}
	return nil
}
