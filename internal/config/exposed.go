// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/holdgate/holdgate/internal/regular"
)

// minToken is how long a token is that nobody guesses: 16 characters of a random text.
const minToken = 16

// maxTokens is the largest file of tokens that is read, in bytes.
const maxTokens = 1 << 20

// exposed warns of secrets that others may read, tokens that can be guessed, and
// directories in which others may put a socket before the router does. None of it
// refuses the start: volumes of Kubernetes belong to root and have wide modes.
func (c *Serve) exposed() []string {
	var list []string
	for _, f := range c.secretFiles() {
		if warning := Exposed("--"+f.flag, f.path); warning != "" {
			list = append(list, warning)
		}
	}
	for _, f := range []flagFile{{"admin-token-file", c.AdminTokenFile}, {"agents-token-file", c.AgentsTokenFile}} {
		tokens, err := ReadTokens(f.path) // an error is the start's to report
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

// Exposed warns of the file of a secret that others may read, by the flag that leads to
// it. It is empty when there is nothing to warn of.
func Exposed(flag, path string) string {
	who := regular.Exposed(path)
	if who == "" {
		return ""
	}
	return fmt.Sprintf("%s: others may read or write %s: run chmod o-rw %s", flag, who, path)
}

type flagFile struct{ flag, path string }

// secretFiles are those that hold a secret themselves.
func (c *Serve) secretFiles() []flagFile {
	files := []flagFile{
		{"admin-token-file", c.AdminTokenFile},
		{"agents-token-file", c.AgentsTokenFile},
		{"agents-tls-key-file", c.AgentsTLSKeyFile},
		{"extproc-tls-key-file", c.ExtProcTLSKeyFile},
		{"hop-secret-file", c.HopSecretFile},
		{"keda-tls-key-file", c.KEDATLSKeyFile},
		{"webhook-headers-file", c.WebhookHeadersFile},
		{"webhook-key-file", c.WebhookKeyFile},
	}
	for _, b := range c.Backends {
		files = append(files, flagFile{"config: api_key_file of backend " + b.Name, b.APIKeyFile})
	}
	return slices.DeleteFunc(files, func(f flagFile) bool { return f.path == "" })
}

// socketDirs are the directories of the unix sockets, each once.
func (c *Serve) socketDirs() []string {
	var dirs []string
	for _, value := range []string{c.ExtProcListen, c.AgentsListen, c.AdminListen, c.Relay} {
		if network, path := Address(value); network == "unix" {
			dirs = append(dirs, filepath.Dir(path))
		}
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}
