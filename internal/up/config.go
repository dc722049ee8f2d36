// SPDX-License-Identifier: Apache-2.0

package up

import (
	"cmp"
	"encoding/json/v2"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/holdgate/holdgate/agentreg/agent"
	"github.com/holdgate/holdgate/sitemap"
)

// File is the file of holdgate up.
type File struct {
	// Listen is the ip:port that clients reach.
	Listen string
	// Admin is the host:port of metrics and health; empty: the usual one if it is free.
	Admin string
	// Serve has the flags for holdgate serve, by name without dashes.
	Serve map[string]string
	// backends is the text of a configuration file for holdgate serve with the backends,
	// empty if there are none.
	backends []byte
	// backendCAs are the files with the authorities of https backends, for Envoy.
	backendCAs []string
	Models     []Model
}

// Model is one model and the engine that serves it. In its command {port} stands for a
// free port, and {python} for the value of HOLDGATE_PYTHON.
type Model struct {
	agent.Config

	Name       string
	HoldBudget time.Duration // 0: the default of holdgate serve
	Wake       *sitemap.Wake // the webhook that is called when the model is wanted; nil: none
}

// Load reads and checks a file. The error has all problems.
func Load(path string) (*File, error) {
	text, err := os.ReadFile(path) //nolint:gosec // the user names the file
	if err != nil {
		return nil, fmt.Errorf("reading the models: %w", err)
	}
	f, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	return f, nil
}

// command returns the engine's command with {python} replaced. {port} is not replaced yet.
func (m *Model) command() []string {
	python := cmp.Or(os.Getenv("HOLDGATE_PYTHON"), "python3")
	words := make([]string, len(m.Exec))
	for i, w := range m.Exec {
		words[i] = strings.ReplaceAll(w, "{python}", python)
	}
	return words
}

// site is the name of the only site of up.
const site = "local"

type placement struct {
	Model         string `json:"model"`
	Kind          string `json:"kind"`
	Site          string `json:"site"`
	ScaleFromZero bool   `json:"scale_from_zero"`
	HoldBudget    string `json:"hold_budget,omitzero"`
	Wake          *hook  `json:"wake,omitzero"`
}

type hook struct {
	URL      string `json:"url"`
	Method   string `json:"method"`
	Cooldown string `json:"cooldown,omitzero"`
}

// siteMap returns a sibling map by which requests for every model may be held.
func (f *File) siteMap() ([]byte, error) {
	m := struct {
		Placements []placement `json:"placements"`
	}{[]placement{}}
	for _, model := range f.Models {
		for _, kind := range model.Kinds {
			p := placement{Model: model.Name, Kind: kind, Site: site, ScaleFromZero: true}
			if model.HoldBudget > 0 {
				p.HoldBudget = model.HoldBudget.String()
			}
			if w := model.Wake; w != nil {
				p.Wake = &hook{URL: w.URL, Method: w.Method}
				if w.Cooldown > 0 {
					p.Wake.Cooldown = w.Cooldown.String()
				}
			}
			m.Placements = append(m.Placements, p)
		}
	}
	text, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("writing the sibling map: %w", err)
	}
	if _, err := sitemap.Parse(text, site); err != nil {
		return nil, fmt.Errorf("the models make no sibling map: %w", err)
	}
	return text, nil
}
