// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/extproc/extproctest"
	"github.com/holdgate/holdgate/extproc/wire"
)

// However a body leaves its pass, its buffers and its memory are released once.
func TestAnUploadIsFreedOnce(t *testing.T) {
	t.Parallel()
	const total, piece = 4 << 20, 100 << 10
	for name, leave := range map[string]func(u *upload){
		"at the end of the pass": func(*upload) {},
		"held":                   func(u *upload) { u.hold() },
		"held twice":             func(u *upload) { u.hold(); u.hold() },
		"sent in chunks": func(u *upload) {
			n := 0
			for chunk, last := u.next(); chunk != nil; chunk, last = u.next() {
				n++
				require.Equal(t, n == 5, last)
				chunk.Free()
			}
			require.Equal(t, 5, n)
		},
		"sent in part": func(u *upload) {
			chunk, last := u.next()
			require.False(t, last)
			chunk.Free()
		},
		"sent whole": func(u *upload) {
			for _, chunk := range u.rest() {
				chunk.Free()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, m := &extproctest.CountingPool{}, newMemory(total, total)
			u := &upload{share: share{m: m}}
			for i, chunk := range pool.In([]byte(strings.Repeat("x", 5*piece)), 5) {
				u.add(&wire.Inbound{Kind: wire.RequestBody, Body: chunk})
				require.NoError(t, u.charge(t.Context(), &head{contentLength: -1}, total, i == 4))
			}
			require.False(t, m.large.TryAcquire(total), "it takes memory")
			leave(u)
			u.free()
			u.free()
			pool.RequireAllBack(t)
			require.Nil(t, u.held)
			require.True(t, m.small.TryAcquire(total/4))
			require.True(t, m.large.TryAcquire(total))
		})
	}
}
