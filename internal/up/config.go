// SPDX-License-Identifier: Apache-2.0

package up

import (
	"bytes"
	"cmp"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/kballard/go-shellquote"
	"go.yaml.in/yaml/v3"

	"github.com/holdgate/holdgate/agentreg/agent"
	"github.com/holdgate/holdgate/internal/config"
	"github.com/holdgate/holdgate/sitemap"
)

// File is what `holdgate up -f` reads.
type File struct {
	// Listen is the host:port that clients reach.
	Listen string `yaml:"listen"`
	// Admin is the host:port of metrics and health.
	Admin string `yaml:"admin"`
	// Serve are flags of holdgate serve, without their dashes.
	Serve  map[string]string `yaml:"serve"`
	Models []Model           `yaml:"models"`
}

// Model is one model and the engine that serves it.
type Model struct {
	Name  string   `yaml:"name"`
	Kinds []string `yaml:"kinds"` // default: what is usual for the engine
	// Engine is one of agent.Engines.
	Engine string `yaml:"engine"`
	// Warmup says whether the engine must answer one token before it gets
	// requests; absent: where the engine is known to need it.
	Warmup *bool `yaml:"warmup"`
	// Exec starts the engine. {port} is a free port, {python} the value of
	// HOLDGATE_PYTHON. It is split as a shell would, without a shell.
	Exec        string            `yaml:"exec"`
	Dir         string            `yaml:"dir"`
	Env         map[string]string `yaml:"env"`
	HealthPath  string            `yaml:"health_path"`
	Slots       int               `yaml:"slots"`        // default: 1
	IdleTimeout time.Duration     `yaml:"idle_timeout"` // default: 5m
	WakeTimeout time.Duration     `yaml:"wake_timeout"` // default: 5m
	HoldBudget  time.Duration     `yaml:"hold_budget"`  // default: that of holdgate serve

	words []string // of Exec
}

const defaultTimeout = 5 * time.Minute

// Load reads and checks a file. All problems are reported at once.
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

func parse(text []byte) (*File, error) {
	f := &File{Listen: "127.0.0.1:8080", Admin: "127.0.0.1:0"}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	if err := dec.Decode(f); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("the file is empty")
		}
		return nil, err
	}
	if dec.Decode(&yaml.Node{}) == nil {
		return nil, errors.New("must hold one YAML document")
	}
	var errs []error
	if _, err := netip.ParseAddrPort(f.Listen); err != nil {
		errs = append(errs, fmt.Errorf("listen: must be ip:port, such as 127.0.0.1:8080, is %q", f.Listen))
	}
	if len(f.Models) == 0 {
		errs = append(errs, errors.New("models: at least one is needed"))
	}
	seen := map[string]bool{}
	for i := range f.Models {
		m := &f.Models[i]
		for _, problem := range m.complete() {
			errs = append(errs, fmt.Errorf("models[%d].%w", i, problem))
		}
		if seen[m.Name] {
			errs = append(errs, fmt.Errorf("models[%d].name: %q is there twice", i, m.Name))
		}
		seen[m.Name] = true
	}
	return f, errors.Join(errs...)
}

// complete sets defaults and returns what is wrong.
func (m *Model) complete() []error {
	m.Engine = cmp.Or(m.Engine, agent.Custom)
	m.Slots = cmp.Or(m.Slots, 1)
	m.IdleTimeout = cmp.Or(m.IdleTimeout, defaultTimeout)
	m.WakeTimeout = cmp.Or(m.WakeTimeout, defaultTimeout)
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	possible, err := agent.KindsOf(m.Engine)
	check(err == nil, "engine: %v", err)
	if err == nil && len(m.Kinds) == 0 {
		m.Kinds = []string{possible[0].String()}
	}
	for _, name := range m.Kinds {
		k, unknown := sitemap.ParseKind(name)
		check(unknown == nil, "kinds: %q must be chat, embedding or rerank", name)
		check(err != nil || unknown != nil || slices.Contains(possible, k), "kinds: %s has no %s", m.Engine, name)
	}
	check(m.Warmup == nil || !*m.Warmup || slices.Contains(m.Kinds, sitemap.Chat.String()), "warmup: is a chat completion: it needs the kind chat")
	m.words, err = shellquote.Split(m.Exec)
	check(m.Name != "", "name: is required")
	check(err == nil && len(m.words) > 0, "exec: must be a command with its arguments, is %q", m.Exec)
	if err == nil && len(m.words) > 0 {
		_, missing := exec.LookPath(m.command("0")[0])
		check(missing == nil, "exec: %s is no program here and not on PATH", m.command("0")[0])
	}
	check(m.Slots > 0, "slots: must be above 0, is %d", m.Slots)
	check(m.IdleTimeout > 0, "idle_timeout: must be above 0, is %v", m.IdleTimeout)
	check(m.WakeTimeout > 0, "wake_timeout: must be above 0, is %v", m.WakeTimeout)
	check(m.HoldBudget >= 0 && m.HoldBudget <= config.MaxHoldBudget, "hold_budget: must be above 0 and at most 1h, is %v", m.HoldBudget)
	return errs
}

// command fills in the placeholders of Exec.
func (m *Model) command(port string) []string {
	fill := strings.NewReplacer("{port}", port, "{python}", cmp.Or(os.Getenv("HOLDGATE_PYTHON"), "python3"))
	words := make([]string, len(m.words))
	for i, w := range m.words {
		words[i] = fill.Replace(w)
	}
	return words
}

func (m *Model) env() []string {
	var env []string
	for name, value := range m.Env {
		env = append(env, name+"="+value)
	}
	return env
}

// site is the name of the one site that up knows.
const site = "local"

type placement struct {
	Model         string `json:"model"`
	Kind          string `json:"kind"`
	Site          string `json:"site"`
	ScaleFromZero bool   `json:"scale_from_zero"`
	HoldBudget    string `json:"hold_budget,omitzero"`
}

// siteMap is the sibling map that lets every model be held.
func (f *File) siteMap() ([]byte, error) {
	var m struct {
		Placements []placement `json:"placements"`
	}
	for _, model := range f.Models {
		for _, kind := range model.Kinds {
			p := placement{Model: model.Name, Kind: kind, Site: site, ScaleFromZero: true}
			if model.HoldBudget > 0 {
				p.HoldBudget = model.HoldBudget.String()
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

// curl is a line to try a model with.
func (m *Model) curl(base *url.URL) string {
	path, body := "/v1/chat/completions", map[string]any{
		"messages": []map[string]string{{"role": "user", "content": "Say hello."}},
	}
	switch m.Kinds[0] {
	case sitemap.Embedding.String():
		path, body = "/v1/embeddings", map[string]any{"input": "hello"}
	case sitemap.Rerank.String():
		path, body = "/v1/rerank", map[string]any{"query": "hello", "documents": []string{"hi", "bye"}}
	}
	body["model"] = m.Name
	text, err := json.Marshal(body, json.Deterministic(true))
	if err != nil {
		return ""
	}
	return shellquote.Join("curl", base.JoinPath(path).String(), "-H", "content-type: application/json", "-d", string(text))
}
