// SPDX-License-Identifier: Apache-2.0

package sitemap

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json/v2"
	"fmt"
	"strings"
	"time"
)

// The names of a hint's states.
const (
	stateWarm = "warm"
	stateCold = "cold"
)

// The wire forms have their fields in canonical order.
type (
	wireMap struct {
		// Generation is a pointer because a map numbered 0 has a number.
		Generation *int64          `json:"generation,omitzero"`
		Sites      []wireSite      `json:"sites,omitempty"`
		Placements []wirePlacement `json:"placements,omitempty"`
		Hints      []wireHint      `json:"hints,omitempty"`
	}
	wireSite struct {
		ID       string   `json:"id"`
		URL      string   `json:"url"`
		Insecure bool     `json:"insecure,omitzero"`
		Scopes   []string `json:"scopes,omitempty"`
	}
	wirePlacement struct {
		Model         string `json:"model"`
		Kind          string `json:"kind"`
		Site          string `json:"site"`
		ScaleFromZero bool   `json:"scale_from_zero,omitzero"`
		HoldBudget    string `json:"hold_budget,omitzero"`
	}
	wireHint struct {
		Model      string `json:"model"`
		Kind       string `json:"kind"`
		Site       string `json:"site"`
		State      string `json:"state"`
		ObservedAt string `json:"observed_at"`
	}
)

// encode makes the canonical form and its tag.
func (m *Map) encode() error {
	text, err := json.Marshal(m.wire())
	if err != nil {
		return fmt.Errorf("encoding the map: %w", err)
	}
	sum := sha256.Sum256(text)
	m.json = text
	m.etag = `"` + hex.EncodeToString(sum[:]) + `"`
	return nil
}

func (m *Map) wire() wireMap {
	w := wireMap{
		Sites:      make([]wireSite, 0, len(m.sites)),
		Placements: make([]wirePlacement, 0, len(m.placements)),
		Hints:      make([]wireHint, 0, len(m.hints)),
	}
	if m.numbered {
		w.Generation = &m.generation
	}
	for _, s := range m.sites {
		w.Sites = append(w.Sites, wireSite(s))
	}
	for _, p := range m.placements {
		w.Placements = append(w.Placements, wirePlacement{
			Model: p.Model, Kind: p.Kind.String(), Site: p.Site,
			ScaleFromZero: p.ScaleFromZero, HoldBudget: durationText(p.HoldBudget),
		})
	}
	for _, h := range m.hints {
		state := stateCold
		if h.Warm {
			state = stateWarm
		}
		w.Hints = append(w.Hints, wireHint{
			Model: h.Model, Kind: h.Kind.String(), Site: h.Site,
			State: state, ObservedAt: h.ObservedAt.Format(time.RFC3339Nano),
		})
	}
	return w
}

// durationText is the Go form without the parts that are zero: 4m, not 4m0s.
func durationText(d time.Duration) string {
	if d == 0 {
		return ""
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
