// SPDX-License-Identifier: Apache-2.0

// Package wake notifies systems outside of Holdgate that can start a model.
//
// [KEDA] is an external scaler for KEDA: it answers polls, and pushes each new need to the
// open streams. [Webhooks] calls the hook of a model while the model is wanted and no
// replica of it is up. [Recent] records when a model was last used.
//
// A need is a state, not an event: reporting a change twice, or two changes as one, causes
// no wrong wake. No method blocks, except the streams of KEDA, and Stop. Webhooks has one
// goroutine per model while its hook is due; KEDA and Recent have none. The package holds no
// lock while it calls functions of the caller, such as those of [Models].
package wake
