// SPDX-License-Identifier: Apache-2.0

// Package admission decides which requests get a reservation of the admission gate, and
// which slot.
//
// The gate limits what is reserved at once for a model, over all of its replicas: the
// number of requests, and their estimated tokens. A request reserves its footprint before
// it waits for a slot, and releases it at its end.
//
// Attempts is the claim of one request, by which the hold machine takes a reservation and a
// slot for it. It tries the steps of the model's policy, which are groups of replicas, one
// after the other.
//
// The package has no queue and starts no goroutine. A request that does not fit gets no
// reservation, and the caller tries again when something has changed.
package admission
