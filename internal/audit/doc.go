// SPDX-License-Identifier: Apache-2.0

// Package audit writes one JSON line per request. The goroutine of the request formats the
// line and the goroutine of the log writes it, with a bounded queue between them: if the disk
// is too slow, lines are dropped and counted, and no request waits. The file is rotated by
// its size, and reopened by Reopen.
package audit
