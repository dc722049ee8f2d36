// SPDX-License-Identifier: Apache-2.0

package site

import (
	"cmp"
	"encoding/json/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/rs/zerolog"

	"github.com/holdgate/holdgate/internal/shared"
)

// maxModels is of how many models a router tells the others the state.
const maxModels = 1000

// Router is what a router says of itself.
type Router struct {
	ID      string    `json:"id"` // new at each start
	SiteID  string    `json:"site_id,omitzero"`
	Host    string    `json:"host"` // where it runs: in Kubernetes the name of the pod
	Admin   string    `json:"admin"`
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	// NotReady is why no traffic should be sent to it; empty if it is ready.
	NotReady string `json:"not_ready,omitzero"`
	Draining bool   `json:"draining,omitzero"`
	Replaced bool   `json:"replaced,omitzero"` // another process has taken over
	Held     int    `json:"held"`              // requests
	InFlight int    `json:"in_flight"`
	// Generation and MapTag are those of its map, without hints; no tag: it has none.
	Generation int64  `json:"generation"`
	MapTag     string `json:"map_tag,omitzero"`
	// Models are those that its agents offer.
	Models []RouterModel `json:"models,omitzero"`
}

// RouterModel is a model of a router's agents.
type RouterModel struct {
	Model   string `json:"model"`
	Serving int    `json:"serving,omitzero"` // replicas
	Asleep  int    `json:"asleep,omitzero"`  // agents
	Waking  bool   `json:"waking,omitzero"`
}

// printable reports whether what a router says can be shown: it has no control characters, which a
// terminal might obey.
func (r *Router) printable() bool {
	words := []string{r.ID, r.SiteID, r.Host, r.Admin, r.Version, r.NotReady, r.MapTag}
	for _, m := range r.Models {
		words = append(words, m.Model)
	}
	return !slices.ContainsFunc(words, func(word string) bool { return strings.ContainsFunc(word, unicode.IsControl) })
}

// Routers is what the routers of the site say of themselves, with each beat. A router that died
// is listed for shared.Life. While the server does not answer, this router alone is.
type Routers struct {
	c      *shared.Client
	own    func() Router
	levels *shared.Levels
	log    zerolog.Logger
	warned atomic.Bool
}

// NewRouters returns the routers of the site. own returns what this one says of itself, without
// its ID. It must be called before the client runs.
func NewRouters(c *shared.Client, log zerolog.Logger, own func() Router) *Routers {
	r := &Routers{c: c, log: log, own: own}
	r.levels = c.NewLevels("router", shared.LevelOptions{
		Own:      func(string) string { return r.text() },
		All:      func() map[string]string { return map[string]string{"router": r.text()} },
		OnChange: func(string) { r.checkSite() },
	})
	return r
}

// checkSite warns once of a router of another site, which must not share this state.
func (r *Routers) checkSite() {
	own := r.own().SiteID
	for _, other := range r.Others() {
		if other.SiteID != own && !r.warned.Swap(true) {
			r.log.Error().Str("site_id", own).Str("other_site_id", other.SiteID).Str("other_host", other.Host).
				Msg("--shared: a router of another site shares the state of this one: give each site a prefix of its own")
		}
	}
}

// Own returns what this router says of itself.
func (r *Routers) Own() Router {
	own := r.own()
	own.ID = r.c.ID()
	return own
}

func (r *Routers) text() string {
	own := r.Own()
	own.Models = own.Models[:min(len(own.Models), maxModels)]
	text, err := json.Marshal(own)
	if err != nil {
		return "" // then the others do not list this router
	}
	return string(text)
}

// Others returns the other routers, by host and ID.
func (r *Routers) Others() (list []Router) {
	r.levels.Each("router", func(value string) {
		var other Router
		if err := json.Unmarshal([]byte(value), &other); err == nil && other.printable() {
			list = append(list, other)
		}
	})
	slices.SortFunc(list, func(a, b Router) int { return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.ID, b.ID)) })
	return list
}
