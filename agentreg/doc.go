// SPDX-License-Identifier: Apache-2.0

// Package agentreg is the router's end of the agents' streams: it tracks which agents are
// registered and which replicas are in routing, hands out their slots, and sends Wake and
// Sleep to agents that can start their engine.
//
// An agent is in routing while its stream is up, the last Status that counts reported its
// engine as serving and healthy, no request has been refused since, and this router has
// not sent Sleep:
//
//	asleep ──Wake──► waking ──Status: serving──► in routing
//	  ▲                │                          │      ▲
//	  │                └──WakeResult: failed──┐   │      │ healthy again
//	  ├───────────────────────────────────────┘   │      │
//	  └──Sleep (idle), Status: asleep─────────────┴──► out of routing
//
// An agent that sends Bye is out of routing for good. Its stream ends when its requests
// have ended: that is how the agent learns that it may stop its engine.
//
// The parts, each with its own methods:
//
//   - Registry: the public methods, the lock and the callbacks (registry.go, status.go).
//   - routing, replica and gate: the data that requests are routed by (routing.go,
//     replica.go, word.go). Slot is a taken slot until its release (slot.go). usage tells the
//     agent what this router does with its share of the slots (usage.go).
//   - state: the data that decisions about one agent depend on (state.go), with its Wake
//     (wake.go), Sleep (sleep.go) and the probe after a refused request (probe.go).
//   - registration: an agent's state, replica and session, and the events that change
//     them: joining and leaving (join.go), reports (reports.go) and timeouts (timer.go).
//     After each change reevaluate does what follows from it.
//   - model: why a model is wanted, and which agents are woken for it (need.go).
//   - group and scope: the agents that share room, and the groups and models that a change
//     may affect (group.go, scope.go). arbitrate.go carries out the plan of agentreg/share.
//   - service and session: one stream, and the check of its Hello (service.go,
//     session.go, hello.go, auth.go).
//
// Wakes depend only on the current state, never on an event: after each relevant change,
// reconcile compares a model's need with the state of all its agents, and sends the Wakes
// that are missing. A Wake that is lost with its stream is sent again, since the agent
// reports itself asleep when it reconnects.
//
// Agents of a group share room, such as the memory of a GPU: arbitrate assigns it to models
// in the order in which they came to need it, and takes agents that are idle or have served
// for long enough out of routing so that they can be sent a Sleep.
//
// Each message of the router that changes the meaning of a Status (Wake, Sleep,
// StatusRequest) has a number, and each Status has the highest number that the agent had
// handled by then. So a Status that was sent before a Sleep arrived does not bring the
// agent back into routing.
//
// Locks: Registry.mu guards everything except routing and the gates. The public methods of
// Registry and Slot take it, and so do the methods of registration whose names begin with
// on; all other methods are called with it held. Changes run in Registry.update, which
// calls the callbacks that they made due after it has unlocked. TakeFrom, Release, Serving
// and Capacity do not take it: they look up a target's replicas under routing's own lock,
// which is held only for a map access, and work on the atomic counters of gates.
//
// There are three goroutines per stream, one timer per agent and one per group. Nothing
// here waits for an agent: the stream of an agent that does not read its messages is ended.
package agentreg
