// SPDX-License-Identifier: Apache-2.0

// Package enginekey gives engines API keys of their own, in place of those of
// callers. Its file names models and the files of their keys; no key is in it, and
// no message of this package repeats the name of a key's file, since a key might
// have been pasted there.
package enginekey

import (
	"maps"
	"slices"

	"github.com/holdgate/holdgate/internal/reload"
)

// Keys are the keys of engines. They never change.
type Keys struct{ models map[string]entry }

// entry is the key of the engines of one model.
type entry struct {
	path          string // of the key's file
	header, value string
}

// File is a file of keys. Its value follows it, and the files of the keys.
type File = reload.File[Keys]

// Load reads a file of keys and keeps its keys until good ones replace them.
func Load(path string, o reload.Options) (*File, error) {
	parse := parser(path)
	return reload.Load(path, func(data []byte, inForce *Keys) (*Keys, error) {
		keys, err := parse(data)
		if err == nil && inForce != nil && maps.Equal(keys.models, inForce.models) {
			return inForce, nil
		}
		return keys, err
	}, o)
}

// Of gives the header with the key that the engines of a model want. Both are empty
// where they have none of their own.
func (k *Keys) Of(model string) (header, value string) {
	e := k.models[model]
	return e.header, e.value
}

// Models are the models whose engines have a key, in alphabetical order.
func (k *Keys) Models() []string { return slices.Sorted(maps.Keys(k.models)) }

// Files are the files of the keys.
func (k *Keys) Files() []string {
	files := map[string]struct{}{}
	for _, e := range k.models {
		files[e.path] = struct{}{}
	}
	return slices.Sorted(maps.Keys(files))
}
