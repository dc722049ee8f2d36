// SPDX-License-Identifier: Apache-2.0

// Package admission says which replica a request may have, and when. Its Capacity is
// what the hold machine asks for slots: it looks for them in the steps of the
// model's policy, one group of replicas after the other.
//
// Its Gate bounds how much a model's replicas have in hand at once: in
// requests and in estimated tokens, over all of them. A request reserves its
// footprint before it waits for a slot and gives it back when it has ended.
//
// There is no queue here and no goroutine: a request that does not fit is told so,
// and its caller asks again when something has changed.
package admission
