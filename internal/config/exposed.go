// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/holdgate/holdgate/internal/regular"
)

// minToken is the length of a token that cannot be guessed: 16 random characters.
const minToken = 16

// maxTokens is the largest file of tokens that is read, in bytes.
const maxTokens = 1 << 20

// exposedWarnings returns warnings about secrets that other users may read, tokens that can
// be guessed, and directories in which other users may create a socket before the router
// does. They do not prevent the start, since Kubernetes volumes belong to root and have wide
// modes.
func (c *Serve) exposedWarnings() []string {
	var list []string
	for _, f := range c.secretFiles() {
		if warning := Exposed("--"+f.flag, f.path); warning != "" {
			list = append(list, warning)
		}
	}
	for _, f := range []flagFile{{"admin-token-file", c.AdminTokenFile}, {"agents-token-file", c.AgentsTokenFile}} {
		tokens, err := ReadTokens(f.path) // the start reports the error
		if err == nil && slices.ContainsFunc(tokens, func(t string) bool { return len(t) < minToken }) {
			list = append(list, fmt.Sprintf("--%s: %s has a token of less than %d bytes, which can be guessed: make one with openssl rand -hex 16", f.flag, f.path, minToken))
		}
	}
	for _, dir := range c.socketDirs() {
		if who := regular.ExposedDir(dir); who != "" {
			list = append(list, fmt.Sprintf("others may put sockets into %s before the router does: use a directory that only its user may write", who))
		}
	}
	return list
}

// Exposed returns a warning, which names the flag, if other users may read or write the file
// of a secret; "" if not.
func Exposed(flag, path string) string {
	who := regular.Exposed(path)
	if who == "" {
		return ""
	}
	return fmt.Sprintf("%s: others may read or write %s: run chmod o-rw %s", flag, who, path)
}

type flagFile struct{ flag, path string }

// secretFiles returns the configured files that contain a secret.
func (c *Serve) secretFiles() []flagFile {
	var files []flagFile
	for _, s := range c.settings() {
		if s.secret {
			files = append(files, flagFile{s.name, *s.text})
		}
	}
	for _, b := range c.Backends {
		files = append(files, flagFile{"config: api_key_file of backend " + b.Name, b.APIKeyFile})
	}
	return slices.DeleteFunc(files, func(f flagFile) bool { return f.path == "" })
}

// socketDirs returns the directories of the unix sockets, without duplicates.
func (c *Serve) socketDirs() []string {
	var dirs []string
	for _, s := range c.settings() {
		if !s.listens {
			continue
		}
		if network, path := Address(*s.text); network == "unix" {
			dirs = append(dirs, filepath.Dir(path))
		}
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}
