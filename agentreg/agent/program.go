// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// CheckProgram returns an error if the program of a command that runs in dir does not exist.
func CheckProgram(program, dir string) error {
	path := program
	if dir != "" && strings.ContainsRune(program, filepath.Separator) && !filepath.IsAbs(program) {
		path = filepath.Join(dir, program) // as os/exec resolves it
	}
	if _, err := exec.LookPath(path); err != nil {
		return fmt.Errorf("%q is not a program here or on PATH", program)
	}
	return nil
}

// CheckDir returns an error if dir is not a directory. An empty dir, which stands for this
// process's working directory, is valid.
func CheckDir(dir string) error {
	if dir == "" {
		return nil
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return fmt.Errorf("%q is not a directory", dir)
	}
	return nil
}
