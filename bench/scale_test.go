// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestATableHasAColumnForEachNumber(t *testing.T) {
	t.Parallel()
	table := scaleTable{name: "keys", columns: []scaleColumn{{"start ms", func(r scaleRow) float64 { return r.Start }}, columnScrape}}
	var text strings.Builder
	require.NoError(t, table.print(&text, []scaleRow{{N: 10, Start: 17.123, Scrape: 1234}, {N: 1000, Start: 0.5}}))
	require.Equal(t, "| keys | start ms | scrape ms |\n|---|---|---|\n| 10 | 17.1 | 1234 |\n| 1000 | 0.5 | 0 |\n\n", text.String())
}

func TestSizesThatAreNotBoundedAreRefused(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"-maps", "100001"}, {"-agents", "1001"}, {"-holds", "10001"}, {"-keys", "100001"}, {"-keys", "many"}, {"-rest", "0s"},
	} {
		require.Error(t, runScale(t.Context(), args), args)
	}
}
