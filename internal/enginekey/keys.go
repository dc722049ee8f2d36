// SPDX-License-Identifier: Apache-2.0

// Package enginekey reads the API keys that the router sends to engines instead of the
// callers' keys. The file that it reads lists models, with the paths of files that contain
// their keys. No message of this package contains such a path, because a key might have
// been pasted there.
package enginekey

import (
	"maps"
	"slices"

	"github.com/holdgate/holdgate/internal/reload"
)

// Keys has the keys of engines. It is immutable.
type Keys struct{ models map[string]entry }

// entry is the key of the engines of one model.
type entry struct {
	path          string // of the key's file
	header, value string
}

// File has the keys of a file. It is read again when it, or a file with a key, changes.
type File = reload.File[Keys]

// Load reads a file of keys now, and again whenever it changes. A change to an invalid file
// is ignored.
func Load(path string, o reload.Options) (*File, error) {
	parse := parser(path)
	return reload.Load(path, func(data []byte, current *Keys) (*Keys, error) {
		keys, err := parse(data)
		if err == nil && current != nil && maps.Equal(keys.models, current.models) {
			return current, nil
		}
		return keys, err
	}, o)
}

// Of returns the header with the key for the engines of a model. Both results are empty if
// the model has no key.
func (k *Keys) Of(model string) (header, value string) {
	e := k.models[model]
	return e.header, e.value
}

// Models returns the models whose engines have a key, in alphabetical order.
func (k *Keys) Models() []string { return slices.Sorted(maps.Keys(k.models)) }

// Files returns the paths of the files of the keys.
func (k *Keys) Files() []string {
	files := map[string]struct{}{}
	for _, e := range k.models {
		files[e.path] = struct{}{}
	}
	return slices.Sorted(maps.Keys(files))
}
