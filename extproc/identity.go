// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// identity is what other filters of Envoy say of the request's sender, nil when
// they say nothing. It comes in a field of Envoy's message that no client can write.
func (st *stream) identity() *structpb.Struct {
	path := st.s.o.IdentityMetadata
	if len(path) == 0 {
		return nil
	}
	return metadataAt(st.raw.metadata, path)
}

// metadataAt is the Struct at a path of encoded Metadata: a namespace, and keys
// that lead deeper.
func metadataAt(metadata []byte, path []string) *structpb.Struct {
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
