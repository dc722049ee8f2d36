// SPDX-License-Identifier: Apache-2.0

// Package holdstate knows who waits for what. A request whose model sleeps is
// held; when a replica registers, all its waiters are released at once and take
// the slots one by one, in a fair order. The package owns the limits, the
// demand and the order; it knows nothing of gRPC, Envoy or HTTP.
//
// One waiter's life:
//
//	Hold                    Queue (a replica serves, there is no room or no slot)
//	  │                       │
//	  ▼       up, again       ▼      room             slot
//	Held ◄──────────────► Released ───────► Admitted ──────► Granted
//	│  ▲        down          │                │             │    │
//	│  ├──────────────────────┼────────────────┘ down        │    │
//	│  └──────────────────────┼────────────────┼─────────────┘    │ done
//	│     back: no answer came│                │                  │
//	▼                         ▼                ▼                  ▼
//	└────────────────────────► Ended ◄────────────────────────────┘
//
// The same as a list, with the outcome of the end:
//
//	Held --Up--> Released
//	Held --Expire--> Ended (expired)
//	Held --Leave--> Ended (disconnected)
//	Held --Unplace--> Ended (removed)
//	Held --Revoke--> Ended (removed)
//	Held --Drain--> Ended (draining)
//	Held --Fail--> Ended (wake_failed)
//	Released --Down--> Held
//	Released --HasRoom--> Admitted
//	Released --Expire--> Ended (released)
//	Released --Refuse--> Ended (released)
//	Released --Leave--> Ended (disconnected)
//	Released --Revoke--> Ended (removed)
//	Released --Drain--> Ended (draining)
//	Admitted --Down--> Held
//	Admitted --Slot--> Granted
//	Admitted --TimeOut--> Ended (released)
//	Admitted --Refuse--> Ended (released)
//	Admitted --Leave--> Ended (disconnected)
//	Admitted --Revoke--> Ended (removed)
//	Admitted --Drain--> Ended (draining)
//	Granted --Back--> Held
//	Granted --Done--> Ended (released)
//	Granted --Leave--> Ended (released)
//
// The machine learns how long the last wakes of each model took, and tells
// clients by that when to come again (RetryAfter). What it learned outlives the
// waiters.
//
// No goroutine lives here. Every change happens under the machine's one lock,
// and a waiter learns of it by its Changed channel. Callbacks run after the lock
// was given back, on the goroutine that caused the change; they may call the
// machine again. The methods of Slots and Claim are called under the lock and must
// not call back.
package holdstate
