// SPDX-License-Identifier: Apache-2.0

// Package agent is the program next to an inference engine: it watches the
// engine's health, registers it with every router, and, where it has a command
// for that, starts the engine when a router sends Wake and stops it when every
// router has sent Sleep.
//
// The engine of an agent with a command goes through these phases:
//
//	asleep ──Wake──► waking ───ready───► serving ──every router: Sleep──► stopping
//	  ▲                │                    │                                │
//	  └── failed ──────┴──── ended ─────────┴──────────── ended ─────────────┘
//
// Ready is healthy and, where that is configured, warm.
//
// # In the order of the files
//
//  1. Start. Run checks the Config (config.go, settings.go, validate.go), and runs
//     the parts below until its context ends (run.go, agent.go). An engine that the
//     agent does not start is first waited for, asked for its models and warmed up
//     (health.go, discover.go, warmup.go). What differs between engines is in the
//     package engines; requests to the engine are in api.go.
//  2. Routers. keepLinks resolves a router's name (routers.go). Each address has a link
//     that connects again and again (link.go, advice.go), and each connection is a
//     conversation: Hello, Welcome, then a Status at each change and each heartbeat
//     (conversation.go). What is sent is made in sessions.go.
//  3. Health. While the engine serves, watch checks its health (health.go) and sample
//     reads how busy it is (signals.go). Both pass it to core (core.go), which has every
//     session send a Status.
//  4. Wake. The conversation passes a Wake to core.onWake; core has the engine wanted.
//     drive starts it (drive.go): it claims the port (ports.go), starts the process
//     (process.go, output.go), waits until it is healthy, checks that it is the engine
//     that answers (owner.go), and makes it ready. core.endWake sends the WakeResult.
//  5. Sleep. core.onSleep notes it; when every router has sent one, the engine is not
//     wanted, and drive stops it once it has no requests.
//  6. Bye. When the context ends, each conversation sends Bye and waits until the router
//     ends the stream, which it does after its last request. Then the engine is stopped.
//
// RunBackend does the same for an engine that runs elsewhere, inside of its only router:
// fleet looks up its name (fleet.go), and each address has a member, an agent that
// checks the engine only while it is needed (member.go).
//
// core holds what the goroutines share; one mutex guards it, and no goroutine waits with
// it held. One goroutine drives the engine, one is there for each router and each of its
// addresses, and while the engine serves one checks its health and one its signals.
package agent
