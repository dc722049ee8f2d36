// SPDX-License-Identifier: Apache-2.0

package shared

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAMessageHasItsNameAndText(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "a", "7 up", "\x00\n"} {
		for _, text := range []string{"", "b", " 3 c"} {
			gotName, gotText, ok := CutNamed(Named(name, text))
			require.True(t, ok)
			require.Equal(t, [2]string{name, text}, [2]string{gotName, gotText})
		}
	}
	for _, other := range []string{"", "a", "-1 a", "2 a", "99999999999999999999 a"} {
		_, _, ok := CutNamed(other)
		require.False(t, ok, "%q", other)
	}
}
