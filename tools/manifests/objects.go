// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

// document is one YAML document and the line of its file at which it begins.
type document struct {
	text []byte
	line int
}

// objects returns the documents of a file that have content, of a page those that have an
// apiVersion.
func objects(file string, text []byte) ([]document, error) {
	if filepath.Ext(file) != ".md" {
		return split(string(text), 1), nil
	}
	blocks, err := fenced(string(text))
	if err != nil {
		return nil, err
	}
	var all []document
	for _, b := range blocks {
		for _, d := range split(string(b.text), b.line) {
			if bytes.Contains(append([]byte("\n"), d.text...), []byte("\napiVersion:")) {
				all = append(all, d)
			}
		}
	}
	return all, nil
}

// split cuts a text at the lines that separate documents, and leaves out those without
// content. The text begins at the given line of its file.
func split(text string, line int) []document {
	var (
		all     []document
		current strings.Builder
		begin   = line
		content bool
	)
	finish := func() {
		if content {
			all = append(all, document{[]byte(current.String()), begin})
		}
		current.Reset()
		content = false
	}
	for l := range strings.Lines(text) {
		if strings.TrimRight(l, " \n") == "---" {
			finish()
			begin = line + 1
		} else {
			current.WriteString(l)
			trimmed := strings.TrimSpace(l)
			content = content || (trimmed != "" && !strings.HasPrefix(trimmed, "#"))
		}
		line++
	}
	finish()
	return all
}

// fenced returns the blocks of a page that are marked as yaml.
func fenced(page string) ([]document, error) {
	const fence = "```"
	var (
		all   []document
		block strings.Builder
		begin int
		in    string // what ends the block; "": none is open
		keep  bool
		n     int
	)
	for l := range strings.Lines(page) {
		n++
		trimmed := strings.TrimSpace(l)
		switch {
		case in == "" && strings.HasPrefix(trimmed, fence):
			in, keep, begin = fence, strings.TrimPrefix(trimmed, fence) == "yaml", n+1
			if indent := len(l) - len(strings.TrimLeft(l, " ")); keep && indent > 0 {
				return nil, fmt.Errorf("line %d: a block of yaml is indented", n)
			}
		case in != "" && trimmed == in:
			if keep {
				all = append(all, document{[]byte(block.String()), begin})
			}
			in = ""
			block.Reset()
		case in != "" && keep:
			block.WriteString(l)
		}
	}
	if in != "" {
		return nil, errors.New("a block does not end")
	}
	return all, nil
}
