// SPDX-License-Identifier: Apache-2.0

// Package divide divides the slots of an agent among its routers, so that together they never
// send the engine more requests than it has slots.
//
// Shares is the division as a pure function: max-min fair by what each router needs (shares.go).
// Ledger carries it out (ledger.go). A router uses its share until it has said that it uses
// less, since a message may be on its way, and requests run on: what it may still use, it
// keeps. Its share is raised only by slots that nobody keeps:
//
//	what all routers keep + what is frozen <= the slots
//
// When the stream of a router ends, nobody knows whether the router died, and Envoy may still
// carry its requests: what it kept is frozen (frozen.go). A router that comes back on another
// stream takes its part over. Otherwise readings of the engine's own number of requests show
// how much of it still runs (looks.go).
//
// The package knows no streams and no clock; a Ledger is not safe for concurrent use.
package divide
