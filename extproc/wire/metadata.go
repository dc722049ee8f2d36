// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// StructAt returns the Struct at a path of encoded Metadata: a namespace, then keys of
// nested structs. It returns nil when there is none, or the path is empty.
func StructAt(metadata []byte, path []string) *structpb.Struct {
	if len(path) == 0 {
		return nil
	}
	var at *structpb.Struct
	eachUnder(metadata, path[0], func(value []byte) {
		namespace := &structpb.Struct{}
		if proto.Unmarshal(value, namespace) == nil {
			at = namespace
		}
	})
	for _, key := range path[1:] {
		at = at.GetFields()[key].GetStructValue()
	}
	return at
}

// EachString calls f with each string of the list under a key of a namespace of encoded Metadata,
// or with the only string there. found is false if there is neither. text is valid during the
// call.
func EachString(metadata []byte, namespace, key string, f func(text []byte)) (found bool) {
	if len(metadata) == 0 {
		return false
	}
	eachUnder(metadata, namespace, func(fields []byte) {
		eachUnder(fields, key, func(value []byte) {
			each(value, func(num protowire.Number, v []byte, _ uint64) {
				switch num {
				case fieldStringValue:
					found = true
					f(v)
				case fieldListValue:
					found = true
					each(v, func(num protowire.Number, item []byte, _ uint64) {
						if num == fieldListValues {
							eachText(item, f)
						}
					})
				}
			})
		})
	})
	return found
}

// eachText calls f with the string of a Value, if it has one.
func eachText(value []byte, f func(text []byte)) {
	each(value, func(num protowire.Number, v []byte, _ uint64) {
		if num == fieldStringValue {
			f(v)
		}
	})
}

// eachUnder calls f for each value of key in the map that is the first field of msg. It
// reads Metadata.filter_metadata and Struct.fields.
func eachUnder(msg []byte, key string, f func(value []byte)) {
	each(msg, func(num protowire.Number, entry []byte, _ uint64) {
		if num != fieldStructFields {
			return
		}
		var name, value []byte
		each(entry, func(num protowire.Number, v []byte, _ uint64) {
			switch num {
			case fieldMapKey:
				name = v
			case fieldMapValue:
				value = v
			}
		})
		if string(name) == key {
			f(value)
		}
	})
}

// stringUnder returns the string value of a key of a Struct, or an empty string.
func stringUnder(fields []byte, key string) (text string) {
	eachUnder(fields, key, func(value []byte) {
		each(value, func(num protowire.Number, v []byte, _ uint64) {
			if num == fieldStringValue {
				text = string(v)
			}
		})
	})
	return text
}
