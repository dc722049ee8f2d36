// SPDX-License-Identifier: Apache-2.0

package access

import (
	"crypto/sha256"

	"github.com/holdgate/holdgate/internal/settings"
)

// Problems are all problems of a keys file.
type Problems = settings.Problems //nolint:errname // a list that is an error

// value is a value in the file with its position.
type value = settings.Value

// rules hide long values from messages, because they may be keys.
var rules = settings.Rules{Show: settings.Little, Brackets: true}

// Parse reads and checks a keys file. Its error is Problems, which lists all of them.
func Parse(data []byte) (*Keys, error) {
	f := file{keys: newKeys(), hashes: map[[sha256.Size]byte]string{}, ids: map[string]string{}}
	err := rules.Parse(data, func(top value) {
		top.Fields(map[string]func(value){
			"keys": func(v value) { v.List(f.entry) },
		}, "keys")
	})
	if err != nil {
		return nil, err
	}
	f.keys.finish()
	return f.keys, nil
}

// file is a keys file while it is read.
type file struct {
	keys   *Keys
	hashes map[[sha256.Size]byte]string // by hash: the path of its entry
	ids    map[string]string            // by id: the path of its entry
}

func (f *file) entry(v value) {
	e := entry{value: v, key: &Key{Share: 1}}
	e.read()
	f.register(e)
}

// register adds a key whose hash and id are valid and unique.
func (f *file) register(e entry) {
	k := e.key
	if k.hash == [sha256.Size]byte{} {
		return // reported
	}
	if first, dup := f.hashes[k.hash]; dup {
		e.hash.Add("is given twice: it is the hash of %s", first)
		return
	}
	f.hashes[k.hash] = e.Path
	if e.id.Node == nil {
		k.ID = defaultID(k.hash)
	}
	if k.ID == "" {
		return // reported
	}
	switch first, dup := f.ids[k.ID]; {
	case dup && e.id.Node == nil:
		e.hash.Add("begins with %s, which is the id of %s: give one of them another id", k.ID, first)
	case dup:
		e.id.Add("is given twice: %s is the id of %s", e.id.Quote(k.ID), first)
	default:
		f.ids[k.ID] = e.Path
		f.keys.add(k)
	}
}
