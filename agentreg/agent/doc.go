// SPDX-License-Identifier: Apache-2.0

// Package agent is the program that runs next to an inference engine. It checks the engine's
// health and registers it with every router. If it has a command for the engine, it starts
// the engine when a router sends Wake and stops it when every router has sent Sleep.
//
// The engine of an agent with a command goes through these phases:
//
//	asleep ──Wake──► waking ───ready───► serving ──every router: Sleep──► stopping
//	  ▲                │                    │                                │
//	  └── failed ──────┴──── ended ─────────┴──────────── ended ─────────────┘
//
// Ready means healthy and, if that is configured, warmed up.
//
// # In the order of the files
//
//  1. Start. Run checks the Config (config.go, settings.go, validate.go), and runs
//     the parts below until its context ends (run.go, agent.go). For an engine that it
//     does not start, the agent first waits until it is healthy, reads its models and warms
//     it up (health.go, discover.go, warmup.go). The differences between engines are in
//     the package engines; requests to the engine are sent by api.go.
//  2. Routers. keepLinks resolves a router's name (routers.go). Each address has a link
//     that reconnects whenever its connection ends (link.go, advice.go). Each connection is
//     a conversation: Hello, Welcome, then a Status at each change and each heartbeat
//     (conversation.go). The messages are made in sessions.go.
//  3. Health. While the engine serves, watch checks its health (health.go) and
//     watchSignals reads how busy it is (signals.go). Both store the result in core
//     (core.go), which makes every session send a Status.
//  4. Wake. The conversation passes a Wake to core.onWake, which makes the engine wanted.
//     drive starts it (drive.go): it claims the port (ports.go), starts the process
//     (process.go, output.go), waits until it is healthy, checks that it is the engine
//     that answers (owner.go), and makes it ready. core.endWake sends the WakeResult.
//  5. Sleep. core.onSleep records it. When every router has sent one, the engine is no
//     longer wanted, and drive stops it once it has no requests.
//     The engine's slots are divided among the routers by what they say of their use
//     (shares.go, divide).
//  6. Bye. When the context ends, each conversation sends Bye and waits until the router
//     ends the stream, which it does after its last request. Then the engine is stopped.
//
// RunBackend does the same, inside of the router, for a backend, an engine without an agent:
// fleet looks up its name (fleet.go), and each address has a member, an agent that checks
// the engine only while it is needed (member.go).
//
// core holds the state that the goroutines share; one mutex guards it, and no goroutine
// blocks with it held. One goroutine starts and stops the engine, there is one for each
// router and one for each of its addresses, and while the engine serves one checks its
// health and one reads its signals.
package agent
