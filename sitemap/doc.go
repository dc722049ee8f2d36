// SPDX-License-Identifier: Apache-2.0

// Package sitemap holds the sibling map: which models are placed at which sites, for which
// models this site may hold requests, and hints about the models at other sites.
//
// [Parse] turns the bytes of a map into an immutable [Map], or returns all problems as
// [Problems], each with its JSON path. [Store] holds the map in force: a push is parsed
// and indexed without a lock and swapped in with one atomic store, so a decision that reads
// [Store.Current] never waits for a push. Lookups in a Map take no lock and allocate
// nothing. [Store.PushHints] replaces only the hints; the new Map shares the rest.
//
// [Map.Pick] chooses the sibling to which a request is redirected, [Map.Explain] returns
// the reasons for all siblings, and [Location] returns the URL of the redirect.
//
// The routers of one site may share their map, see [Store.Share] and [Shared]: one place
// decides each push for all of them, and [Store.Sync] takes what another router was given.
//
// The package starts no goroutine. Only [Store.Restore], and pushes and [Store.Sync] after
// [Store.Persist], use the disk. Errors of a push:
//
//   - [Problems]: the map is invalid, nothing was applied.
//   - [ErrTooLarge]: more than [MaxBytes], nothing was applied.
//   - [*ConflictError]: the generation is not newer, nothing was applied.
//   - [*MismatchError]: If-Match names another map, nothing was applied.
//   - [ErrNoMap]: hints without a map, nothing was applied.
//   - [*UnreadableError]: hints for a map that this router cannot read, nothing was applied.
//   - [*PersistError]: the map is in force but is not on disk.
package sitemap
