// SPDX-License-Identifier: Apache-2.0

// Package holdstate manages the requests that wait. A request whose model sleeps is held;
// when a replica registers, all waiters of its target are released at once and get slots one
// by one, in a fair order. The package owns the limits on waiting requests, their order, the
// demand and the learned wake times. It does not depend on gRPC, Envoy or HTTP.
//
// A waiter's states. Hold starts in Held; Queue starts in Released, or in Admitted with
// the reservation that the request has already:
//
//	         Up              Reserved           Slot             Done
//	Held ─────────► Released ─────────► Admitted ─────► Granted ──────► Ended
//	 ▲                  │                   │              │
//	 └──────────────────┴───────────────────┴──────────────┘
//	 Down of Released and Admitted, Back of Granted
//
// These are all rows of the table in table.go, with the outcome of a waiter that ends. A
// waiter of Queue ends without an outcome when it would have to be held: its caller must
// decide the request again.
//
//	Held --Up--> Released
//	Held --Expire--> Ended (expired)
//	Held --Leave--> Ended (disconnected)
//	Held --Unplace--> Ended (removed)
//	Held --Revoke--> Ended (removed)
//	Held --Drain--> Ended (draining)
//	Held --Fail--> Ended (wake_failed)
//	Released --Down--> Held (of Hold)
//	Released --Down--> Ended (of Queue: to decide again)
//	Released --Reserved--> Admitted
//	Released --Expire--> Ended (released)
//	Released --Refuse--> Ended (released)
//	Released --Leave--> Ended (disconnected)
//	Released --Revoke--> Ended (removed)
//	Released --Drain--> Ended (draining)
//	Admitted --Down--> Held (of Hold)
//	Admitted --Down--> Ended (of Queue: to decide again)
//	Admitted --Slot--> Granted
//	Admitted --TimeOut--> Ended (released)
//	Admitted --Refuse--> Ended (released)
//	Admitted --Leave--> Ended (disconnected)
//	Admitted --Revoke--> Ended (removed)
//	Admitted --Drain--> Ended (draining)
//	Granted --Back--> Held (of Hold)
//	Granted --Back--> Ended (of Queue: to decide again)
//	Granted --Done--> Ended (released)
//	Granted --Leave--> Ended (released)
//
// Retry-After is computed from how long the last wakes of each model took. These durations
// are kept when the model has no waiters.
//
// The package starts no goroutine. The machine has one lock: exported methods take it,
// unexported ones run under it, except change. Only Waiter.apply changes the state of a
// waiter, and its Changed channel then gets a value. Callbacks run after the lock is
// released, on the goroutine that caused the change, and may call the machine. Slots,
// Claim and PlaceOf are called under the lock and must not call the machine.
package holdstate
