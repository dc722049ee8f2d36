// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestQuantileIsTheNearestRank(t *testing.T) {
	t.Parallel()
	hundred := make([]int, 100)
	for i := range hundred {
		hundred[i] = i + 1
	}
	require.Equal(t, 50, quantile(hundred, 0.50))
	require.Equal(t, 99, quantile(hundred, 0.99))
	require.Equal(t, 100, quantile(hundred, 1))
	require.Equal(t, 1, quantile(hundred, 0))
	require.Equal(t, 7, quantile([]int{7}, 0.99))
	require.Zero(t, quantile([]int{}, 0.5))
}

func TestMedianOfAnEvenNumberIsBetween(t *testing.T) {
	t.Parallel()
	values := []float64{9, 1, 4, 2}
	require.InDelta(t, 3, median(values), 0)
	require.Equal(t, []float64{9, 1, 4, 2}, values, "the caller's order stays")
	require.InDelta(t, 4, median([]float64{9, 1, 4}), 0)
	require.Equal(t, spread{Median: 3, Min: 1, Max: 9}, spreadOf(values))
}

func TestRatiosComparePairsOfTheSameRound(t *testing.T) {
	t.Parallel()
	// The machine was twice as slow in the second round, for both systems alike.
	c := cell{size: 1 << 10, clients: 8, rounds: map[string][]round{
		systemFloor:    {{P50: 1, Rate: 1000}, {P50: 2, Rate: 500}, {P50: 1, Rate: 1000}},
		systemHoldgate: {{P50: 1.1, Rate: 900}, {P50: 2.2, Rate: 450}, {P50: 1.2, Rate: 800}},
	}}
	report := buildReport([]cell{c}, speedOptions{duration: time.Second, rounds: 3})
	require.Len(t, report.Rows, 2)
	row := report.Rows[1]
	require.Equal(t, systemHoldgate, row.System)
	require.InDelta(t, 1.1, row.P50Ratio.Median, 1e-9)
	require.InDelta(t, 1.2, row.P50Ratio.Max, 1e-9)
	require.InDelta(t, 0.9, row.RateRatio.Median, 1e-9)

	var text strings.Builder
	require.NoError(t, report.markdown(&text))
	require.Contains(t, text.String(), "| 1 KiB | 8 | holdgate | 1.200 | 0.000 | 800 | 0.000 | 1.10 (1.10–1.20) | 0.90 (0.80–0.90) |")
}

func TestSizesAreReadAndWritten(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{"100": 100, "1KiB": 1 << 10, "64KiB": 64 << 10, "1MiB": 1 << 20} {
		got, err := parseSize(text)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, text := range []string{"", "0", "-1", "1KB", "65MiB", "KiB", "9999999999999999999"} {
		_, err := parseSize(text)
		require.Error(t, err, text)
	}
	require.Equal(t, "64 KiB", sizeText(64<<10))
	require.Equal(t, "100 B", sizeText(100))
}

func TestTheBodyHasExactlyTheSize(t *testing.T) {
	t.Parallel()
	for _, size := range []int{100, 1 << 10, 64 << 10, 1 << 20} {
		body, err := chatBody(size)
		require.NoError(t, err)
		require.Len(t, body, size)
	}
	_, err := chatBody(10)
	require.Error(t, err)
}
