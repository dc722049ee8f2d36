// SPDX-License-Identifier: Apache-2.0

// Package decision decides what happens to a request: it is the extproc.Decider. The
// order is:
//
//  1. The caller is found by an identity that Envoy found out, by its key, or by the token
//     of a redirected request; else 401 (Authenticate).
//  2. An alias is replaced by its model (Call.Resolve).
//  3. A model that is not in the allowlist of the key is refused with 403.
//  4. A replica serves the model here: the quota is charged (429), then the request gets a
//     reservation of the admission gate and a slot, or waits for them in the queue (serve).
//  5. A router without a site knows no other way (404); one without a map answers 503. A
//     model of a backend needs neither.
//  6. The map has the model at a sibling that is the better choice: redirect.
//  7. The model may be held here: the quota is charged, and the request waits for a replica
//     (hold).
//  8. Else 404, or 503 while its agent may still be registering.
package decision
