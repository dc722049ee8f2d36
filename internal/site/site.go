// SPDX-License-Identifier: Apache-2.0

package site

import (
	"strconv"
	"time"
)

// notify puts a token into a channel of capacity 1 unless it has one already.
func notify(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// millis returns a duration in milliseconds, as scripts take it.
func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
