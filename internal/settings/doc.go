// SPDX-License-Identifier: Apache-2.0

// Package settings reads and checks settings that people write, and lists everything
// that is wrong with them at once, as [Problems].
//
// [Rules.Parse] reads a YAML file strictly: one document, no references to anchors and
// no merges, each key a known string that occurs once. It walks the file by its
// [Value]s; each problem has its path and line. [Show] limits how much of the file the
// messages repeat.
package settings
