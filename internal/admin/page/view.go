// SPDX-License-Identifier: Apache-2.0

package page

import "time"

// View is what the page shows.
type View struct {
	// Protected: the admin API needs a token. Locked: it was not given, so the page only asks for
	// it. Wrong: another one was given.
	Protected, Locked, Wrong bool

	Now                time.Time
	SiteID             string
	Health, HealthText string // ok, warning or bad
	MapText            string
	InFlight           int
	Models             []Model
	ModelsMore         int
	Waiting            []Waiting
	WaitingMore        int
	Holds              []Hold
	Agents             []Agent
	AgentsMore         int
	Gateways           []Gateway
	Sites              []Site
	Decisions          []Decision
}

// Model is a model with its state. Class is the state in one word, for its color.
type Model struct {
	Index        int
	Name         string
	State, Class string
	Serving      int
	Demand       int
	Waits        string // for room in a group
	CanWake      bool
	Progress     bool // it is starting
	Of, Elapsed  int  // seconds; Of is 0 if no wake is known
	ProgressText string
}

// Waiting is the requests of one key that wait for a model.
type Waiting struct {
	Who, Model, Kind string
	Requests         int
	Age              string
}

// Hold is how many requests of all were held for a time.
type Hold struct {
	Range        string
	Requests, Of uint64
}

// Agent is a registered agent.
type Agent struct {
	ID           string
	State, Class string
	Note         string // what is wrong with it
	Slots        int64
	InFlight     int64
	Models       []string
}

// Gateway is an Envoy that Holdgate's bootstrap did not make.
type Gateway struct {
	Name     string
	Requests uint64
	Ago      string
	Log      bool // it sends its access log
}

// Site is another site.
type Site struct {
	ID, URL string
	Hints   []Hint
	More    int
}

// Hint is what is known of a model at another site.
type Hint struct{ Model, Kind, State, Age string }

// Decision is the decision on a request that was not served at once.
type Decision struct {
	Time                time.Time
	Type                string
	Model, Kind, Reason string
}
