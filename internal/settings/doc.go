// SPDX-License-Identifier: Apache-2.0

// Package settings reads and checks settings from files and flags, and returns everything
// that is wrong with them as [Problems].
//
// [Rules.Parse] reads a YAML file strictly: one document, no references to anchors and no
// merges, each key a known string that occurs once. The caller reads the file by its
// [Value]s; each problem has the path and line of its value. [Show] limits how much of the
// file messages quote.
package settings
