// SPDX-License-Identifier: Apache-2.0

package hint

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAHintFitsItsAddresses(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		texts    []string
		fit, not []string
	}{
		"one list":        {[]string{"10.0.0.1:80", "10.0.0.2:81"}, []string{"10.0.0.1:80", "10.0.0.2:81"}, []string{"10.0.0.1:81", "10.0.0.3:80"}},
		"one string":      {[]string{"10.0.0.1:80, 10.0.0.2:81"}, []string{"10.0.0.1:80", "10.0.0.2:81"}, []string{"10.0.0.2:80"}},
		"without ports":   {[]string{"10.0.0.1", "fd00::1", "[fd00::2]"}, []string{"10.0.0.1:7", "[fd00::1]:7", "[fd00::2]:8"}, []string{"10.0.0.2:7"}},
		"IPv6":            {[]string{"[fd00::1]:80"}, []string{"[fd00:0::1]:80"}, []string{"[fd00::1]:81"}},
		"IPv4 as IPv6":    {[]string{"[::ffff:10.0.0.1]:80"}, []string{"10.0.0.1:80"}, nil},
		"twice":           {[]string{"10.0.0.1:80,10.0.0.1:80"}, []string{"10.0.0.1:80"}, nil},
		"empty":           {nil, nil, []string{"10.0.0.1:80"}},
		"an empty string": {[]string{""}, nil, []string{"10.0.0.1:80"}},
		"names and junk":  {[]string{"pod-1:80", "10.0.0.1:x", ",,", "*"}, nil, []string{"10.0.0.1:80", "pod-1:80", "junk"}},
	} {
		h := &Hint{}
		for _, text := range tt.texts {
			h.Add(text)
		}
		for _, address := range tt.fit {
			require.True(t, h.Fits(address), "%s: %s", name, address)
		}
		for _, address := range tt.not {
			require.False(t, h.Fits(address), "%s: %s", name, address)
		}
	}
	require.True(t, (*Hint)(nil).Fits("10.0.0.1:80"), "no hint")
}

func TestAHintHasALimit(t *testing.T) {
	t.Parallel()
	var all []string
	for i := range 3 * MaxAddresses {
		all = append(all, fmt.Sprintf("10.1.%d.%d:80", i/256, i%256))
	}
	h := &Hint{}
	h.Add(strings.Join(all, ","))
	h.Add("10.9.9.9:80")
	require.Len(t, h.addresses, MaxAddresses)
	require.True(t, h.Fits(all[0]))
	require.True(t, h.Fits(all[MaxAddresses-1]))
	require.False(t, h.Fits(all[MaxAddresses]))
	require.False(t, h.Fits("10.9.9.9:80"))
}

func TestALookCostsNoMemory(t *testing.T) { //nolint:paralleltest // it counts allocations
	h := &Hint{}
	h.Add("10.0.0.1:80,fd00::1")
	fits := 0
	require.Zero(t, testing.AllocsPerRun(100, func() {
		for _, address := range [...]string{"10.0.0.1:80", "10.0.0.2:80", "[fd00::1]:80"} {
			if h.Fits(address) {
				fits++
			}
		}
	}))
	require.Equal(t, 2*101, fits)
}
