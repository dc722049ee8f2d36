// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdgate/holdgate/extproc/wire"
)

// identity is what other filters of Envoy say of the request's sender, nil when
// they say nothing. It comes in a field of Envoy's message that no client can write.
func (st *stream) identity() *structpb.Struct {
	path := st.s.o.IdentityMetadata
	if len(path) == 0 {
		return nil
	}
	return wire.StructAt(st.raw.Metadata, path)
}
