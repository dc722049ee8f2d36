// SPDX-License-Identifier: Apache-2.0

package admin

import "time"

// Status is the state of the router at one moment.
type Status struct {
	Ready    bool          `json:"ready"`
	NotReady string        `json:"not_ready,omitzero"` // why
	Warning  string        `json:"warning,omitzero"`   // what a router that is ready lacks
	SiteID   string        `json:"site_id,omitzero"`
	InFlight int           `json:"in_flight"`
	Map      *MapStatus    `json:"map,omitzero"` // nil: none
	Models   []ModelStatus `json:"models"`
	Agents   []AgentStatus `json:"agents"`
	// Waiting are the requests that wait at this router, those that wait longest first;
	// WaitingMore is how many requests wait that are not listed.
	Waiting     []WaitStatus `json:"waiting,omitzero"`
	WaitingMore int          `json:"waiting_more,omitzero"`
	// HoldTimes are how long requests were held since the start, the shortest first, from the
	// first time that occurred to the last.
	HoldTimes []HoldTime `json:"hold_times,omitzero"`
	// Gateways are the Envoys that called recently and that the router's own bootstrap did not
	// make.
	Gateways []GatewayStatus `json:"gateways,omitzero"`
	// Siblings are the other sites of the map.
	Siblings []SiblingStatus `json:"siblings,omitzero"`
}

// WaitStatus is the requests of one caller that wait for a target.
type WaitStatus struct {
	Model    string    `json:"model"`
	Kind     string    `json:"kind"`
	KeyID    string    `json:"key_id,omitzero"`
	Tenant   string    `json:"tenant"`
	Requests int       `json:"requests"`
	Held     int       `json:"held"` // those that no replica serves yet
	Since    time.Time `json:"since"`
}

// HoldTime is how many requests were held for longer than the HoldTime before, and at most UpTo
// seconds; 0: for any longer time.
type HoldTime struct {
	UpTo     float64 `json:"up_to_seconds,omitzero"`
	Requests uint64  `json:"requests"`
}

// SiblingStatus is another site.
type SiblingStatus struct {
	Site  string       `json:"site"`
	URL   string       `json:"url"`
	Hints []HintStatus `json:"hints"`
	// HintsMore is how many hints are not listed.
	HintsMore int `json:"hints_more,omitzero"`
}

// HintStatus is what is known of a model at another site.
type HintStatus struct {
	Model string `json:"model"`
	Kind  string `json:"kind"`
	// State is warm or cold, stale if the hint is too old to be used, or unknown if no choice
	// uses it.
	State      string    `json:"state"`
	ObservedAt time.Time `json:"observed_at"`
}

// SiteStatus is the state of all routers of the site, as one of them knows it.
type SiteStatus struct {
	SiteID string `json:"site_id,omitzero"`
	// Alone is why the other routers are not known; empty if they are.
	Alone   string         `json:"alone,omitzero"`
	Map     *MapStatus     `json:"map,omitzero"` // nil: none
	Routers []RouterStatus `json:"routers"`
	// Models have the demand of all routers.
	Models []ModelStatus `json:"models"`
}

// RouterStatus is one router of the site.
type RouterStatus struct {
	ID      string    `json:"id"`            // new at each start; empty without --shared
	This    bool      `json:"this,omitzero"` // the router that answers
	Host    string    `json:"host"`
	Admin   string    `json:"admin"` // address of its admin API
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	// State is ready, not_ready with the reason in NotReady, draining, or replaced, which means
	// that it ends with its last request because another process has taken over.
	State    string `json:"state"`
	NotReady string `json:"not_ready,omitzero"`
	Held     int    `json:"held"`
	InFlight int    `json:"in_flight"`
	// Generation and MapTag are those of its map, without hints; no tag: it has none.
	Generation int64  `json:"generation"`
	MapTag     string `json:"map_tag,omitzero"`
}

// MapStatus is the sibling map in force.
type MapStatus struct {
	Generation int64     `json:"generation"`
	Source     string    `json:"source"`
	ReceivedAt time.Time `json:"received_at"`
	AgeSeconds int64     `json:"age_seconds"`
	ETag       string    `json:"etag"`
	Models     int       `json:"models"`
	Holdable   int       `json:"holdable"`
	Hints      int       `json:"hints"`
}

// ModelStatus is one model that is placed at any site or has an agent here.
type ModelStatus struct {
	Model string `json:"model"`
	// State is warm, waking, asleep or elsewhere.
	State   string `json:"state"`
	Serving int    `json:"serving"`
	Asleep  int    `json:"asleep"`
	Waking  bool   `json:"waking"`
	Demand  int    `json:"demand"`
	Wanted  bool   `json:"wanted"`
	// WakingSince is when the model was first seen in state waking; zero in other states.
	// WakeSeconds is how long nine of ten wakes take; 0: not known yet.
	WakingSince time.Time `json:"waking_since,omitzero"`
	WakeSeconds float64   `json:"wake_seconds,omitzero"`
	// Waits describes the room in a group that the model waits for; empty: none.
	Waits string `json:"waits,omitzero"`
	// Destination is how its requests are sent on from a gateway; empty for a model that only
	// other routers know.
	Destination string `json:"destination,omitzero"`
}

// GatewayStatus is an Envoy that calls the router and that the router's own bootstrap did not
// make.
type GatewayStatus struct {
	Envoy    string    `json:"envoy"`
	Requests uint64    `json:"requests"`
	LastSeen time.Time `json:"last_seen"`
	// Log reports whether its access log tells when requests have ended. Without it they have
	// no slots once they are sent on.
	Log bool `json:"log"`
}

// Signals are the engine's own numbers; nil if it does not report them.
type Signals struct {
	// InFlight is the number of requests in the engine, from all routers.
	InFlight *uint32  `json:"in_flight,omitzero"`
	Running  *uint32  `json:"running,omitzero"`
	Waiting  *uint32  `json:"waiting,omitzero"`
	KVUse    *float64 `json:"kv_use,omitzero"`
}

// AgentStatus is one registered agent.
type AgentStatus struct {
	ID       string    `json:"id"`
	State    string    `json:"state"`
	Healthy  bool      `json:"healthy"`
	Routing  bool      `json:"in_routing"`
	Models   []string  `json:"models"`
	Kinds    []string  `json:"kinds"`
	Address  string    `json:"address"`
	Engine   string    `json:"engine"`
	Region   string    `json:"region,omitzero"`
	Slots    int64     `json:"slots"`
	InFlight int64     `json:"in_flight"`
	Signals  Signals   `json:"signals,omitzero"`
	CanWake  bool      `json:"can_wake"`
	Group    string    `json:"group,omitzero"`
	Closing  bool      `json:"closing,omitzero"` // to make room in its group
	Error    string    `json:"last_wake_error,omitzero"`
	NextTry  time.Time `json:"next_try,omitzero"` // after that error
	Joined   time.Time `json:"joined"`
	LastSeen time.Time `json:"last_seen"`
}
