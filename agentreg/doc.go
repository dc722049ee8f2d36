// SPDX-License-Identifier: Apache-2.0

// Package agentreg knows who can serve: it is the router's end of the agents'
// streams, the table of replicas in routing with their slots, and the part
// that says Wake and Sleep to agents that can start their engine.
//
// An agent is in routing while its stream is up and, by the last Status that
// counts, its engine serves and is healthy, no request saw it refuse, and this
// router has not said Sleep to it:
//
//	asleep ──Wake──► waking ──Status: serving──► in routing
//	  ▲                │                          │      ▲
//	  │                └──WakeResult: failed──┐   │      │ healthy again
//	  ├───────────────────────────────────────┘   │      │
//	  └──Sleep (idle), Status: asleep─────────────┴──► out of routing
//
// An agent that says Bye is out of routing for good. Its stream ends when the
// requests that it has are over, so that it knows when its engine may stop.
//
// Waking is driven by levels, never by edges: after every change that could
// matter, reconcile looks at all of a model's agents and at whether it is
// wanted, and sends what is missing. A Wake that is lost with its stream is
// sent again because the agent that comes back says that it is asleep.
//
// Agents of a group share room, such as a GPU: arbitrate gives it to models in the
// order in which they came to need it, and takes idle or long-served agents out
// of routing so that they can be told to sleep.
//
// Each word of the router that changes what a Status means (Wake, Sleep,
// StatusRequest) carries a number, and an agent's Status says the highest it
// has taken in. So a Status that crossed a Sleep on its way brings nobody back
// into routing.
//
// One mutex guards everything but the slots. Take, Release and Serving look a
// target's replicas up under a lock that is held for a map access, and work on
// atomic counters. Callbacks run without the mutex.
// Goroutines: three per stream, and one timer per agent. Nothing here waits
// for an agent: an agent that does not read its messages loses its stream.
package agentreg
