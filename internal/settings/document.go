// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Parse parses a file, and calls read with the top value of its document. It returns all
// problems as Problems. After the first hundred, a last one says that there are more.
func (r Rules) Parse(data []byte, read func(top Value)) error {
	root, err := r.document(data)
	if r.NothingOK && errors.Is(err, errEmpty) {
		return nil
	}
	if err != nil {
		return Problems{{Message: err.Error()}}
	}
	w := &walk{rules: r}
	read(Value{Node: root, walk: w})
	return w.found.Err()
}

var errEmpty = errors.New("must not be empty")

// document returns the top node of the only document in data.
func (r Rules) document(data []byte) (*yaml.Node, error) {
	if r.MaxBytes > 0 && len(data) > r.MaxBytes {
		return nil, fmt.Errorf("must have at most %d bytes", r.MaxBytes)
	}
	var top yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	switch err := dec.Decode(&top); {
	case errors.Is(err, io.EOF):
		return nil, errEmpty
	case err != nil:
		return nil, r.Show.syntax(err)
	}
	switch err := dec.Decode(&yaml.Node{}); {
	case errors.Is(err, io.EOF):
	case err == nil, r.Show == Nothing:
		return nil, errors.New("must hold one YAML document")
	default:
		return nil, r.Show.syntax(err)
	}
	root := top.Content[0]
	if (r.EmptyOK || r.NothingOK) && absent(root) {
		return nil, errEmpty
	}
	return root, nil
}

// syntax returns an error of the YAML parser as one line. Such errors quote the file only
// where they name an anchor; for a file of secrets even that is not relied on, and only the
// line is kept.
func (s Show) syntax(err error) error {
	switch {
	case s == Nothing:
		var line int
		if _, scanErr := fmt.Sscanf(err.Error(), "yaml: line %d:", &line); scanErr != nil {
			return errors.New("is not YAML")
		}
		return fmt.Errorf("is not YAML: see line %d", line)
	case s == Little && strings.Contains(err.Error(), "unknown anchor"):
		return errors.New("is not YAML: it refers to an anchor that is not there")
	}
	q := strconv.Quote(strings.TrimPrefix(err.Error(), "yaml: "))
	return errors.New("is not YAML: " + strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`))
}
