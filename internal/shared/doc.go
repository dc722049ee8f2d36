// SPDX-License-Identifier: Apache-2.0

// Package shared is the state that the routers of one site share in a Valkey or Redis server.
//
// A [Client] makes the calls. No request depends on a call: each has [CallTimeout], and after
// a few failures in a row the client is down, which means that calls fail at once with
// [ErrDown] until the server answers again. A caller that gets an error decides with what its
// own router knows.
//
// What every router must know of the others is replicated as [Levels]: values by name, which
// each router writes for itself, again every [Beat], and which end [Life] after they were last
// written. A change is also published, so that the others know it at once; a message that is
// lost is made good by the next beat.
//
// All keys begin with the prefix of the address as a hash tag, so that those of a site are in
// one slot of a cluster, and a script may use several of them.
//
// Run has the goroutines of a client: one that connects and beats, one that receives
// messages, one for each Levels and one for each call of Go. Callbacks are called on them, one
// at a time for each goroutine, and must not block.
package shared
