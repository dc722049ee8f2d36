// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json/v2"
	"fmt"
	"net/http"
	"time"

	"github.com/holdgate/holdgate/internal/admin"
	"github.com/holdgate/holdgate/internal/admin/client"
)

// refresh is how often the hints are written; they are valid for 30 s.
const refresh = 2 * time.Second

// document is a sibling map.
type document struct {
	Sites      []siteEntry `json:"sites"`
	Placements []placement `json:"placements"`
}

type siteEntry struct {
	ID       string `json:"id"`
	URL      string `json:"url"`
	Insecure bool   `json:"insecure"` // http, only for this machine
}

type placement struct {
	Model         string `json:"model"`
	Kind          string `json:"kind"`
	Site          string `json:"site"`
	ScaleFromZero bool   `json:"scale_from_zero"`
}

type hint struct {
	Model      string    `json:"model"`
	Kind       string    `json:"kind"`
	Site       string    `json:"site"`
	State      string    `json:"state"`
	ObservedAt time.Time `json:"observed_at"`
}

// pushMap pushes the map of the fleet to a site: both sites may hold the model.
func (f *fleet) pushMap(ctx context.Context, to *site) error {
	var d document
	for _, s := range []*site{f.a, f.b} {
		d.Sites = append(d.Sites, siteEntry{s.id, s.url, true})
		d.Placements = append(d.Placements, placement{model, "chat", s.id, true})
	}
	text, err := json.Marshal(d)
	if err != nil {
		return err
	}
	_, err = to.admin.PushMap(ctx, text, client.Push{})
	return err
}

// untilWarm waits for the agent of site b, and reports it to site a.
func (f *fleet) untilWarm(ctx context.Context) error {
	if err := f.until(ctx, "the engine of site b is registered", func() bool {
		warm, err := f.b.warm(ctx)
		return err == nil && warm
	}); err != nil {
		return err
	}
	f.registered = true
	return f.pushHints(ctx)
}

// warm reports whether a site serves the model.
func (s *site) warm(ctx context.Context) (bool, error) {
	var status admin.Status
	if err := s.admin.JSON(ctx, client.Call{Method: http.MethodGet, Path: "/v1/status"}, &status); err != nil {
		return false, err
	}
	for _, m := range status.Models {
		if m.Model == model {
			return m.Serving > 0, nil
		}
	}
	return false, nil
}

// pushHints reports the state of each site to the other, as a map writer does.
func (f *fleet) pushHints(ctx context.Context) error {
	for _, pair := range [][2]*site{{f.a, f.b}, {f.b, f.a}} {
		to, other := pair[0], pair[1]
		warm, err := other.warm(ctx)
		if err != nil {
			return fmt.Errorf("asking site %s: %w", other.id, err)
		}
		h := hint{model, "chat", other.id, "cold", time.Now().UTC()}
		if warm {
			h.State = "warm"
		}
		text, err := json.Marshal(map[string][]hint{"hints": {h}})
		if err != nil {
			return err
		}
		if _, err := to.admin.PushHints(ctx, text); err != nil {
			return fmt.Errorf("pushing hints to site %s: %w", to.id, err)
		}
	}
	return nil
}

// write keeps the hints fresh until ctx ends or a part fails.
func (f *fleet) write(ctx context.Context) error {
	tick := time.NewTicker(refresh)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := f.ended(); err != nil {
			return err
		}
		if err := f.pushHints(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
}
