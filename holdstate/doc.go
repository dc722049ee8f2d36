// SPDX-License-Identifier: Apache-2.0

// Package holdstate keeps the requests that wait. A request whose model sleeps is held;
// when a replica registers, all waiters of its target are released at once and take the
// slots one by one, in a fair order. The package owns the limits of what may wait, the
// order, the demand and the learned wake times. It has no gRPC, Envoy or HTTP in it.
//
// A waiter's states. Hold starts in Held; Queue starts in Released, or in Admitted with
// the reservation that the request has already:
//
//	         Up              Reserved           Slot             Done
//	Held ─────────► Released ─────────► Admitted ─────► Granted ──────► Ended
//	 ▲                  │                   │              │
//	 └──────────────────┴───────────────────┴──────────────┘
//	         Down               Back
//
// All steps of the table in table.go, with the outcome of a waiter that ends. Without one
// a waiter of Queue would have to be held: its caller decides again.
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
// Retry-After comes from how long the last wakes of each model took, which outlives the
// waiters.
//
// No goroutine lives here. The machine has one lock: exported methods take it, unexported
// ones run under it, except change. A waiter's state changes in Waiter.apply alone, and its
// Changed channel reports that. Callbacks run after the lock is released, on the goroutine
// that caused the change, and may call the machine. Slots and Claim are called under the
// lock and must not call the machine.
package holdstate
