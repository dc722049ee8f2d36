// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"slices"
	"time"
)

// quantile returns the nearest-rank quantile of sorted values, or the zero value if
// there are none.
func quantile[T cmp.Ordered](sorted []T, q float64) T {
	var zero T
	if len(sorted) == 0 {
		return zero
	}
	i := int(q*float64(len(sorted))+0.999999999) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// median returns the middle of unsorted values; of an even number of values, the mean
// of the middle two.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	half := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[half]
	}
	return (sorted[half-1] + sorted[half]) / 2
}

// spread is a median with the minimum and maximum of its values.
type spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

func spreadOf(values []float64) spread {
	if len(values) == 0 {
		return spread{}
	}
	return spread{Median: median(values), Min: slices.Min(values), Max: slices.Max(values)}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
