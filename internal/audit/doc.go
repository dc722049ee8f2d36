// SPDX-License-Identifier: Apache-2.0

// Package audit writes one JSON line per request. A line is made by the goroutine
// of the request and written by the log's own, with a bounded queue between them:
// when the disk does not keep up, lines are dropped and counted, and no request
// waits. The file is rotated by its size and opened anew on request.
package audit
