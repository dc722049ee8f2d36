// SPDX-License-Identifier: Apache-2.0

// Package agentreg is the router's end of the agents' streams: it holds which agents
// are registered and which replicas are in routing, gives out their slots, and sends
// Wake and Sleep to agents that can start their engine.
//
// An agent is in routing while its stream is up and, by the last Status that
// counts, its engine serves and is healthy, no request was refused since, and this
// router has not sent Sleep:
//
//	asleep ──Wake──► waking ──Status: serving──► in routing
//	  ▲                │                          │      ▲
//	  │                └──WakeResult: failed──┐   │      │ healthy again
//	  ├───────────────────────────────────────┘   │      │
//	  └──Sleep (idle), Status: asleep─────────────┴──► out of routing
//
// An agent that sends Bye is out of routing for good. Its stream ends when the
// requests that it has are over, so that the agent learns when its engine may stop.
//
// The parts, each with its own methods:
//
//   - Registry: the public methods, the lock and the callbacks (registry.go, status.go).
//   - routing, replica and gate: what a request needs (routing.go, replica.go). Slot is
//     a slot from TakeFrom to Release (slot.go).
//   - state: what decides about one agent, and nothing else (state.go), with the Wake
//     (wake.go), the Sleep (sleep.go) and the probe after a refused request (probe.go).
//   - registration: an agent's state, its replica and its session, and what acts on
//     them: its life from Hello to the end (join.go), what it reports (reports.go), what
//     time brings (timer.go). reevaluate does what follows from a change.
//   - model: why it is wanted and who is woken for it (need.go).
//   - group and scope: who shares room, and what a change may affect (group.go,
//     scope.go). arbitrate.go has agentreg/share make the plan, and carries it out.
//   - service and session: one stream, and the check of its Hello (service.go,
//     session.go, hello.go, auth.go).
//
// Wakes depend on the present state, never on an event: after every change that could
// matter, reconcile compares a model's need with what all of its agents do, and sends
// what is missing. A Wake that is lost with its stream is sent again because the agent
// that comes back reports that it is asleep.
//
// Agents of a group share room, such as a GPU: arbitrate gives it to models in the
// order in which they came to need it, and takes idle or long-served agents out
// of routing so that they can be sent a Sleep.
//
// Each message of the router that changes what a Status means (Wake, Sleep,
// StatusRequest) carries a number, and an agent's Status has the highest that it
// takes into account. So a Status that crossed a Sleep on its way brings no agent back
// into routing.
//
// Locks: Registry.mu guards everything but routing and the gates. It is taken in
// Registry's public methods, in Slot's, and in the methods of registration whose names
// begin with on; all other methods are called with it held. Changes run in
// Registry.update, which calls the callbacks that they made due after it has unlocked.
// TakeFrom, Release, Serving and Capacity do not take it: they look a target's replicas
// up under routing's own lock, which is held for a map access, and work on the atomic
// counters of gates.
//
// Goroutines: three per stream, one timer per agent and one per group. Nothing here
// waits for an agent: an agent that does not read its messages loses its stream.
package agentreg
