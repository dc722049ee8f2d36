// SPDX-License-Identifier: Apache-2.0

// Package wake tells those outside who can start a model that it is wanted.
//
// [KEDA] serves KEDA's external scaler: it answers polls, and pushes each new
// wish to the streams that are open. [Webhooks] calls the hook of a model while
// it is wanted and nothing of it is up. [Recent] remembers when a model was used
// last.
//
// A wish is a level that the caller looks up: who reports a change too often, or
// two changes as one, causes no wrong wake. No method blocks, but for the streams
// of KEDA and for Stop. Webhooks has one goroutine per model while its hook is
// due, KEDA and Recent have none. Nothing of what is asked of the caller, such as
// [Models], happens under a lock of this package.
package wake
