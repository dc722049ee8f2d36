// SPDX-License-Identifier: Apache-2.0

// Package polltest waits in tests for what other processes, or goroutines that use real sockets,
// bring about. Where time can be faked, testing/synctest is better.
package polltest

import (
	"testing"
	"time"
)

// Until waits until something is true, at most 20 s. what says what that is.
func Until(t *testing.T, what string, is func() bool) {
	t.Helper()
	Within(t, 20*time.Second, what, is)
}

// Within is Until with another limit.
func Within(t *testing.T, limit time.Duration, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	timeout := time.After(limit)
	for !is() {
		select {
		case <-timeout:
			t.Fatalf("not within %v: %s", limit, what)
		case <-tick.C:
		}
	}
}
