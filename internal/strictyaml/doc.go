// SPDX-License-Identifier: Apache-2.0

// Package strictyaml reads YAML files that people write and that must say nothing
// by accident: one document, no references to anchors and no merges, each key a
// string that stands there once and is known. [Rules.Parse] walks a file by its
// [Value]s and reports all that is wrong with it at once, as [Problems], each with
// its path and line. [Rules.Document] reads the document alone.
//
// How much of a file its messages may repeat is for [Show] to say.
package strictyaml
