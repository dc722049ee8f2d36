// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAPoolsSocketNamesIt(t *testing.T) {
	t.Parallel()
	require.Equal(t, "qwen-2.5_b", PoolOf("/run/holdgate/"+PoolSocket("qwen-2.5_b")))
	for _, path := range []string{"", "/run/relay.sock", "/run/pool-.sock", "/run/pool-a b.sock", "/run/pool--a.sock", "/run/pool-x/a.sock", "/run/pool-a"} {
		require.Empty(t, PoolOf(path), path)
	}
	for _, name := range []string{"", "a/b", "a b", "-a", "ä", "a=b", "a,b"} {
		require.Error(t, CheckPool(name), name)
	}
}

func TestPoolsHaveDifferentAddressesThatNoEngineHas(t *testing.T) {
	t.Parallel()
	a, b := PoolAddress("a"), PoolAddress("b")
	require.NotEqual(t, a, b)
	require.Equal(t, a, PoolAddress("a"))
	require.NoError(t, CheckAddress(a))
	require.True(t, a.Addr().IsLoopback())
	require.GreaterOrEqual(t, a.Addr().As4()[1], byte(128))
	require.EqualValues(t, 1, a.Port())
}
