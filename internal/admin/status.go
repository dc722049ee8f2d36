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
	// Waits describes the room in a group that the model waits for; empty: none.
	Waits string `json:"waits,omitzero"`
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
