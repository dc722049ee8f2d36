// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/holdgate/holdgate/internal/reload"
)

// ReadTokens reads a file of bearer tokens, one per line. Empty lines and lines that begin
// with # are ignored. If the path is empty there are no tokens. A file that is not regular,
// such as a named pipe, or is larger than 1 MiB, is an error.
func ReadTokens(path string) ([]string, error) {
	if path == "" {
		return nil, nil
	}
	text, err := reload.Read(path, maxTokens)
	if err != nil {
		return nil, fmt.Errorf("reading tokens: %w", err)
	}
	tokens, err := ParseTokens(text)
	if err != nil {
		return nil, fmt.Errorf("reading tokens: %s %w", path, err)
	}
	return tokens, nil
}

// ParseTokens parses the text of a file of bearer tokens.
func ParseTokens(text []byte) ([]string, error) {
	var tokens []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			tokens = append(tokens, line)
		}
	}
	if len(tokens) == 0 {
		return nil, errors.New("has no token: put one on a line")
	}
	return tokens, nil
}
