// SPDX-License-Identifier: Apache-2.0

package shared

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTheBreakerOpensAfterFailuresInARow(t *testing.T) {
	t.Parallel()
	refused, late := errors.New("refused"), context.DeadlineExceeded
	at := time.Unix(1, 0)
	for name, tc := range map[string]struct {
		results []error
		after   []time.Duration // of each result, since at
		opens   bool
	}{
		"two failures":                 {[]error{refused, refused}, []time.Duration{0, 0}, false},
		"three failures":               {[]error{refused, refused, refused}, []time.Duration{0, 0, 0}, true},
		"a success between":            {[]error{refused, refused, nil, refused}, []time.Duration{0, 0, 0, 0}, false},
		"many late in a short pause":   {[]error{late, late, late, late, late}, []time.Duration{0, 0, 1, 2, pauseAllowed - 1}, false},
		"late for longer than a pause": {[]error{late, late, late}, []time.Duration{0, 1, pauseAllowed}, true},
		"late, a success, late":        {[]error{late, nil, late, late, late}, []time.Duration{0, 1, pauseAllowed, pauseAllowed, pauseAllowed + 1}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBreaker()
			require.True(t, b.close())
			opened := false
			for i, err := range tc.results {
				opened = b.note(err, at.Add(tc.after[i])) || opened
			}
			require.Equal(t, tc.opens, opened)
			require.Equal(t, tc.opens, b.open.Load())
			require.Equal(t, tc.opens, b.close())
		})
	}
}
