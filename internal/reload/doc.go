// SPDX-License-Identifier: Apache-2.0

// Package reload keeps a value up to date with the file from which it was parsed.
//
// [Load] reads the file once and fails if it is invalid. Later an invalid file changes
// nothing: the previous value stays current, the error is logged, and the gauges of
// [Metrics] show it. The file is read again by [File.Reload], for a SIGHUP, and by
// [File.Watch], which checks it every [Interval].
//
// Watch detects a file that was written in place, one that was renamed over it, and a
// symbolic link in its path that has a new target, as Kubernetes swaps them. It reads a
// changed file only once two checks in a row found it the same, so that it does not read
// one that is still being written.
//
// A value may have a method Files() []string that returns further files from which it was
// made. They are watched in the same way, and the [Parser] is called when one has changed.
//
// Current never blocks. Reloads run one at a time. The package starts no goroutine: the
// caller runs Watch.
package reload
