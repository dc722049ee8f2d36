// SPDX-License-Identifier: Apache-2.0

// Package agent is the program next to an inference engine: it watches the
// engine's health, registers it with every router, and, where it has a command
// for that, starts the engine when a router asks and stops it when every
// router lets it go.
//
// The engine of an agent with a command goes through these phases:
//
//	asleep ──Wake──► waking ───ready───► serving ──every router: Sleep──► stopping
//	  ▲                │                    │                                │
//	  └── failed ──────┴──── ended ─────────┴──────────── ended ─────────────┘
//
// Ready is healthy and, where that is asked for, warm. An engine that somebody
// else starts is waited for, asked for its models and warmed up before the first
// connection to a router. What differs between engines is the table in engines.go.
//
// RunBackend is the same for an engine that runs elsewhere, inside of its only router.
// It asks the engine only while that router says that somebody needs it, and looks its
// name up again while it waits.
//
// core holds the phase and what each router last said; one mutex guards it.
// One goroutine drives the engine towards what core wants. Each router address
// has a link, whose goroutine sends what core has to say and reports what the
// router says. While the engine serves, one goroutine asks for its health and another how
// busy it is. Nobody holds the mutex while waiting.
package agent
