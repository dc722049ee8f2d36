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
		// Generation is a pointer because 0 is a valid generation.
		Generation *int64          `json:"generation,omitzero"`
		Sites      []wireSite      `json:"sites,omitempty"`
		Placements []wirePlacement `json:"placements,omitempty"`
	}
	wireSite struct {
		ID       string   `json:"id"`
		URL      string   `json:"url"`
		Insecure bool     `json:"insecure,omitzero"`
		Scopes   []string `json:"scopes,omitempty"`
	}
	wirePlacement struct {
		Model         string    `json:"model"`
		Kind          string    `json:"kind"`
		Site          string    `json:"site"`
		ScaleFromZero bool      `json:"scale_from_zero,omitzero"`
		HoldBudget    string    `json:"hold_budget,omitzero"`
		Wake          *wireWake `json:"wake,omitzero"`
	}
	wireWake struct {
		URL      string `json:"url"`
		Method   string `json:"method,omitzero"`
		Cooldown string `json:"cooldown,omitzero"`
	}
	wireHint struct {
		Model      string `json:"model"`
		Kind       string `json:"kind"`
		Site       string `json:"site"`
		State      string `json:"state"`
		ObservedAt string `json:"observed_at"`
	}
)

// encode sets the canonical form and its tag.
func (c *core) encode() (err error) {
	c.json, c.tag, err = canonical(c.wire())
	return err
}

const (
	// tagSize is the length of the tag of a part of a map: half of a SHA-256 in hex.
	tagSize = sha256.Size
	// etagSize is the length of an entity tag: both parts' tags in quotes.
	etagSize = 2*tagSize + 2
)

// canonical marshals one part of a map and returns its tag: half of a SHA-256, so that the
// tags of both parts together have the usual length.
func canonical(v any) (text []byte, tag string, err error) {
	if text, err = json.Marshal(v); err != nil {
		return nil, "", fmt.Errorf("encoding the map: %w", err)
	}
	sum := sha256.Sum256(text)
	return text, hex.EncodeToString(sum[:sha256.Size/2]), nil
}

func (c *core) wire() wireMap {
	w := wireMap{
		Sites:      make([]wireSite, 0, len(c.sites)),
		Placements: make([]wirePlacement, 0, len(c.placements)),
	}
	if c.numbered {
		w.Generation = &c.generation
	}
	for _, s := range c.sites {
		w.Sites = append(w.Sites, wireSite(s))
	}
	for _, p := range c.placements {
		w.Placements = append(w.Placements, wirePlacement{
			Model: p.Model, Kind: p.Kind.String(), Site: p.Site,
			ScaleFromZero: p.ScaleFromZero, HoldBudget: durationText(p.HoldBudget), Wake: p.Wake.wire(),
		})
	}
	return w
}

// withHints returns the JSON of the whole map: the core's with the hints as last member.
func (m *Map) withHints() []byte {
	const name = `,"hints":`
	text := make([]byte, 0, len(m.json)+len(name)+len(m.hints.json)+1)
	text = append(text, m.json[:len(m.json)-1]...)
	if len(text) > 1 {
		text = append(text, name...)
	} else {
		text = append(text, name[1:]...)
	}
	text = append(text, m.hints.json...)
	return append(text, '}')
}

// encode sets the canonical form and its tag.
func (h *hintSet) encode() (err error) {
	list := make([]wireHint, 0, len(h.list))
	for _, hint := range h.list {
		state := stateCold
		if hint.Warm {
			state = stateWarm
		}
		list = append(list, wireHint{
			Model: hint.Model, Kind: hint.Kind.String(), Site: hint.Site,
			State: state, ObservedAt: hint.ObservedAt.Format(time.RFC3339Nano),
		})
	}
	h.json, h.tag, err = canonical(list)
	return err
}

// durationText formats d like Duration.String, without parts that are zero: 4m, not 4m0s.
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
