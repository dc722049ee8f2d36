// SPDX-License-Identifier: Apache-2.0

package access

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Parse reads and checks a keys file. Every problem is reported at once, as
// Problems; then there are no keys.
func Parse(data []byte) (*Keys, error) {
	top, err := document(data)
	if err != nil {
		return nil, Problems{{Message: err.Error()}}
	}
	var found Problems
	f := file{keys: newKeys(), hashes: map[[sha256.Size]byte]string{}, ids: map[string]string{}}
	root := value{top, "", &found}
	root.fields(map[string]func(value){
		"keys": func(v value) { v.list(f.entry) },
	}, "keys")
	if len(found) > 0 {
		return nil, found
	}
	f.keys.finish()
	return f.keys, nil
}

// document is the top of the one document in data.
func document(data []byte) (*yaml.Node, error) {
	var top yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	switch err := dec.Decode(&top); {
	case errors.Is(err, io.EOF):
		return nil, errors.New("must not be empty")
	case err != nil:
		return nil, syntax(err)
	}
	switch err := dec.Decode(&yaml.Node{}); {
	case err == nil:
		return nil, errors.New("must hold one YAML document")
	case !errors.Is(err, io.EOF):
		return nil, syntax(err)
	}
	return top.Content[0], nil
}

// syntax makes one clean line of what the YAML reader says. Only in its words on
// anchors are words of the file.
func syntax(err error) error {
	if strings.Contains(err.Error(), "unknown anchor") {
		return errors.New("is not YAML: it refers to an anchor that is not there")
	}
	q := strconv.Quote(strings.TrimPrefix(err.Error(), "yaml: "))
	return errors.New("is not YAML: " + strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`))
}

// file is a keys file that is being read.
type file struct {
	keys   *Keys
	hashes map[[sha256.Size]byte]string // where they stand
	ids    map[string]string
}

func (f *file) entry(v value) {
	e := entry{value: v, key: &Key{Share: 1}}
	e.read()
	f.register(e)
}

// register adds a key whose hash and id are good and its own.
func (f *file) register(e entry) {
	k := e.key
	if k.hash == [sha256.Size]byte{} {
		return // reported
	}
	if first, again := f.hashes[k.hash]; again {
		e.hash.add("is there twice: it is the hash of %s", first)
		return
	}
	f.hashes[k.hash] = e.path
	if e.id.Node == nil {
		k.ID = defaultID(k.hash)
	}
	if k.ID == "" {
		return // reported
	}
	switch first, again := f.ids[k.ID]; {
	case again && e.id.Node == nil:
		e.hash.add("begins with %s, which is the id of %s: give one of them another id", k.ID, first)
	case again:
		e.id.add("is there twice: %s is the id of %s", quote(k.ID), first)
	default:
		f.ids[k.ID] = e.path
		f.keys.add(k)
	}
}
