// SPDX-License-Identifier: Apache-2.0

// Package decision decides what happens to a request: it is the extproc.Decider. The
// first of these steps that has an answer gives it:
//
//  1. key: the caller is found by the identity that a filter of Envoy has set, by its key,
//     or by the token of a redirected request; else 401 (Authenticate).
//  2. alias: it is replaced by its model (Call.Resolve).
//  3. allowlist: a model that is not in the list of the key is refused with 403.
//  4. served_here: a replica serves the model. The quota is charged (429); then the request
//     gets a reservation of the admission gate and a slot, or waits for them in the queue,
//     or is refused (serve.go).
//  5. map: a router without a site has no other way (404), one without a map answers 503.
//     A model of a backend needs neither.
//  6. redirect: the map has the model at a sibling that is the better choice.
//  7. hold: the model may be held here. The quota is charged, and the request waits for a
//     replica, or is refused (hold.go).
//  8. not_served: 404, or 503 while the model's agent may still be registering.
//
// Steps 3 to 8 are decide. For a request it runs with effects that act; for explain it runs
// with effects that only look (effects.go), and with a trace of the steps (trace.go).
package decision
