// SPDX-License-Identifier: Apache-2.0

// Package reload keeps a checked value in step with the file it was read from.
//
// [Load] reads the file once and fails where it is bad. After that a bad file
// never takes anything away: the value that was read last stays, the reason is
// logged, and the gauges of [Metrics] show it. The file is read again by
// [File.Reload], which a SIGHUP may call, and by [File.Watch], which looks at it
// every [Interval].
//
// Watch sees a file that was written in place, one that was renamed over it, and
// a symbolic link on the way that points elsewhere, as Kubernetes swaps them. It
// reads a file that changed only when two looks found it the same, so that a file
// that is being written is not taken for a short one.
//
// A value with a method Files() []string was made of those files too: they are
// watched in the same way, and its [Parser] is called when one of them has changed.
//
// Current never blocks. Reloads run one at a time. The package starts no
// goroutine: Watch is the caller's.
package reload
