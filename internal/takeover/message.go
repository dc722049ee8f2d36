// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"time"

	"github.com/holdgate/holdgate/extproc/wire"
)

// Message is one message. Exactly one field is set. A field that the other process does not know
// is ignored, since the two may be of different versions.
type Message struct {
	Offer   *Offer
	Ready   *Ready
	Agents  *Agents
	Commit  *Commit
	Left    *Left
	Serving *Serving

	Needs   *Needs
	Entries *Entries
	Gone    *Gone
	Claim   *Claim
}

// Offer says what the sockets that were sent before it are for.
type Offer struct {
	PID     int
	Sockets []Socket
}

// Socket is a socket that listens.
type Socket struct {
	Flag, Address string // the flag of serve and its value
}

// Ready is the first message of the handover; the package comment has their order. Gob cannot
// send a struct without fields, so it has the process that it is from.
type Ready struct{ PID int }

// Commit is the second message of the process that takes over.
type Commit struct{ PID int }

// Serving is its third message.
type Serving struct{ PID int }

// Agents has the ids of the agents that were told to connect to the new process.
type Agents struct {
	PID int
	IDs []string
}

// Left says that the old process accepts no connection any more.
type Left struct {
	PID int
	Map []byte // the sibling map in force; empty: none
}

// Needs is what the models of the old process need, by name, its own predecessor's included. A
// model that is missing needs nothing.
type Needs struct {
	At     time.Time
	Models map[string]Need
	// Routers are the sockets where the old process and those before it take the streams of
	// agents, by router id.
	Routers map[string]string
}

// Need is what one model needs.
type Need struct {
	Demand int // distinct requests that wait
	Wanted bool
}

// Entries are log entries of requests that the sender does not know.
type Entries struct{ List []wire.LogEntry }

// Gone says that the Envoy at an address ended its last log stream at a time, and with it all
// requests that it carried.
type Gone struct {
	Envoy string
	At    time.Time
}

// Claim says that a request continues in the new process: Envoy's attempt at an engine of the
// old one has failed.
type Claim struct{ RequestID string }
