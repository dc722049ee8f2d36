// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/memtest"
)

// Each look-up of one model is made without a list of the others.
func TestOneModelIsFoundWithoutALookAtTheOthers(t *testing.T) { //nolint:paralleltest // it counts allocations
	a := newApp(t)
	var text strings.Builder
	for i := range 5_000 {
		fmt.Fprintf(&text, `,{"model":"m%d","kind":"chat","site":"here","scale_from_zero":true}`, i)
	}
	_, err := a.maps.Push([]byte(`{"placements":[`+text.String()[1:]+`]}`), false)
	require.NoError(t, err)
	who := calls(t, a, "")
	for name, ask := range map[string]func() bool{
		"GET /v1/models/{id}": func() bool { return strings.Contains(string(who.Models("m777")), `"state":"asleep"`) },
		"an unknown one":      func() bool { return who.Models("n777") == nil },
		"POST /v1/wake":       func() bool { return a.isKnown("m777") && !a.isKnown("n777") },
		"KEDA":                func() bool { return !kedaModels{a.notifiers}.Active("m777", 1) },
		"a resumed call":      func() bool { return a.decider.Resume().Models("m777") == nil },
	} {
		found := false
		require.Less(t, memtest.Allocated(func() { found = ask() }), int64(64<<10), name)
		require.True(t, found, name)
	}
}
