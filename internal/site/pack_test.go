// SPDX-License-Identifier: Apache-2.0

package site

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLongTextsAreCompressed(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 2, packFrom - 1, packFrom, 1 << 20, maxUnpacked} {
		text := bytes.Repeat([]byte("{"), size)
		packed, err := pack(text)
		require.NoError(t, err)
		require.Equal(t, size >= packFrom, strings.HasPrefix(packed, zstdMagic))
		require.LessOrEqual(t, len(packed), max(size, packFrom-1))
		back, err := unpack(packed)
		require.NoError(t, err)
		require.True(t, bytes.Equal(text, back), size)
	}
}

func TestAnUnpackedTextHasALimit(t *testing.T) {
	t.Parallel()
	packed, err := pack(make([]byte, maxUnpacked+1))
	require.NoError(t, err)
	_, err = unpack(packed)
	require.ErrorContains(t, err, "decompressing")
	_, err = unpack(zstdMagic + "damaged")
	require.ErrorContains(t, err, "decompressing")
}
