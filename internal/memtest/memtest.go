// SPDX-License-Identifier: Apache-2.0

// Package memtest measures memory in tests.
package memtest

import "runtime"

// Allocated returns how many bytes f allocates. Tests that use it must not be parallel.
func Allocated(f func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc) //nolint:gosec // a test allocates less than 2^63 bytes
}
