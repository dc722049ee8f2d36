// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"errors"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdgate/holdgate/internal/access"
)

// identityOf reads the identity of a caller from the metadata of a filter of Envoy. there
// reports whether any field of an identity exists: some filters write other data to the same
// place.
func identityOf(said *structpb.Struct) (i access.Identity, there bool, err error) {
	fields := said.GetFields()
	text := func(name string) string {
		v, given := fields[name]
		there = there || given
		if _, isText := v.GetKind().(*structpb.Value_StringValue); given && !isText {
			err = errors.Join(err, errors.New(name+" must be a string"))
		}
		return v.GetStringValue()
	}
	list := func(name string) []string {
		v, given := fields[name]
		there = there || given
		if !given {
			return nil
		}
		names, ok := namesOf(v)
		if !ok {
			err = errors.Join(err, errors.New(name+" must be a list of strings, or a string with commas"))
		}
		return names
	}
	i = access.Identity{Tenant: text("tenant"), ID: text("key_id"), Models: list("models"), Scopes: list("scopes")}
	return i, there, err
}

// namesOf reads a list of strings, or one string with names between commas. names is never
// nil.
func namesOf(v *structpb.Value) (names []string, ok bool) {
	names = []string{}
	switch kind := v.GetKind().(type) {
	case *structpb.Value_StringValue:
		for name := range strings.SplitSeq(kind.StringValue, ",") {
			if name = strings.TrimSpace(name); name != "" {
				names = append(names, name)
			}
		}
		return names, true
	case *structpb.Value_ListValue:
		for _, one := range kind.ListValue.GetValues() {
			text, isText := one.GetKind().(*structpb.Value_StringValue)
			if !isText {
				return names, false
			}
			names = append(names, text.StringValue)
		}
		return names, true
	default:
		return names, false
	}
}
