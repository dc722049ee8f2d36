// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMetricsThatMakeNoSenseAreNotTold(t *testing.T) {
	t.Parallel()
	p := prometheus{running: "r", waiting: "w", kvUse: []string{"new", "old"}}
	cases := map[string]struct {
		text string
		want Signals
	}{
		"nothing":          {"", Signals{}},
		"without a type":   {"r 2\n", Signals{Running: new(uint32(2))}},
		"the older name":   {"# TYPE old gauge\nold 0.5\n", Signals{KVUse: new(0.5)}},
		"the newer name":   {"old 0.5\nnew 0.25\n", Signals{KVUse: new(0.25)}},
		"more than all":    {"new 1.5\n", Signals{KVUse: new(1.0)}},
		"negative":         {"r -1\nw 1\nnew -1\n", Signals{Waiting: new(uint32(1))}},
		"not a number":     {"r NaN\nw +Inf\nnew NaN\n", Signals{}},
		"another type":     {"# TYPE r counter\nr 3\n", Signals{}},
		"too many for us":  {"r 1e300\n", Signals{}},
		"labels of a part": {"r{a=\"1\"} 1\nr{a=\"2\"} 2\n", Signals{Running: new(uint32(3))}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := p.parse([]byte(tc.text))
			require.NoError(t, err)
			require.Equal(t, tc.want, s)
		})
	}
	for _, text := range []string{"r", "r {", "<html>", "r 1"} {
		_, err := p.parse([]byte(text))
		require.Error(t, err, text)
	}
}

func TestRequestsInsideAreCountedWhenBothNumbersAreKnown(t *testing.T) {
	t.Parallel()
	one, most := new(uint32(1)), new(uint32(math.MaxUint32))
	require.Equal(t, new(uint32(2)), Signals{Running: one, Waiting: one}.InFlight())
	require.Nil(t, Signals{Running: one}.InFlight())
	require.Nil(t, Signals{Waiting: one}.InFlight())
	require.Nil(t, Signals{Running: most, Waiting: most}.InFlight())
}
