// SPDX-License-Identifier: Apache-2.0

// Package sitemap holds the sibling map: which model is placed at which site, for which
// models this site may hold requests, and what hints say of the other sites.
//
// [Parse] turns the bytes of a map into an immutable [Map], or reports every
// problem at once as [Problems], each with its JSON path. [Store] keeps the
// map in force: a push is parsed and indexed outside any lock and swapped in
// with one atomic store, so a decision that reads [Store.Current] never waits
// for a push of any size. Lookups in a Map take no lock and allocate nothing.
// [Store.PushHints] replaces the hints alone; the new Map shares the rest.
//
// [Map.Pick] chooses the sibling to which a request is redirected, [Map.Explain] lists
// why, and [Location] returns the URL of the redirect.
//
// The package starts no goroutine. Only [Store.Restore] and a [Store.Push]
// after [Store.Persist] touch the disk. Errors of a push:
//
//   - [Problems]: the map is wrong, nothing was applied.
//   - [ErrTooLarge]: more than [MaxBytes], nothing was applied.
//   - [*ConflictError]: the generation is not newer, nothing was applied.
//   - [*MismatchError]: If-Match names another map, nothing was applied.
//   - [ErrNoMap]: hints without a map, nothing was applied.
//   - [*PersistError]: the map is in force but is not on disk.
package sitemap
