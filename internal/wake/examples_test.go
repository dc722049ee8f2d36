// SPDX-License-Identifier: Apache-2.0

package wake

import (
	"bytes"
	"encoding/json/v2"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kedacore/keda/v2/pkg/scalers/externalscaler"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/holdgate/holdgate/internal/target"
	"github.com/holdgate/holdgate/sitemap"
)

const (
	kedaExamples    = "../../examples/keda"
	webhookExamples = "../../examples/webhook"
)

// scaledObject is the part of a ScaledObject that the tests look at.
type scaledObject struct {
	Spec struct {
		IdleReplicaCount, MinReplicaCount, MaxReplicaCount *int
		Triggers                                           []kedaTrigger
	}
}

type kedaTrigger struct {
	Type     string
	Metadata map[string]string
}

// examples gives the ScaledObjects, as they are and as this test reads them.
func examples(t *testing.T) (raw map[string]any, objects map[string]scaledObject) {
	t.Helper()
	paths, err := filepath.Glob(kedaExamples + "/*.yaml")
	require.NoError(t, err)
	require.Len(t, paths, 2)
	raw, objects = map[string]any{}, map[string]scaledObject{}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		var value any
		require.NoError(t, yaml.Unmarshal(data, &value)) // it refuses a key that is given twice
		raw[filepath.Base(path)] = value
		text, err := json.Marshal(value)
		require.NoError(t, err)
		var o scaledObject
		require.NoError(t, json.Unmarshal(text, &o, json.MatchCaseInsensitiveNames(true)))
		objects[filepath.Base(path)] = o
	}
	return raw, objects
}

// kedaFile reads a file of the version of KEDA that is built against.
func kedaFile(t *testing.T, name string) []byte {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/kedacore/keda/v2").Output()
	require.NoError(t, err)
	data, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), name))
	require.NoError(t, err)
	return data
}

// closed has a schema refuse what it does not name. Kubernetes drops it instead.
func closed(schema any) {
	s, ok := schema.(map[string]any)
	if !ok {
		return
	}
	properties, ok := s["properties"].(map[string]any)
	if ok && s["additionalProperties"] == nil && s["x-kubernetes-preserve-unknown-fields"] == nil {
		s["additionalProperties"] = false
	}
	for _, p := range properties {
		closed(p)
	}
	closed(s["items"])
	closed(s["additionalProperties"])
}

// definition is the schema of a ScaledObject, as KEDA ships it.
func definition(t *testing.T) *jsonschema.Schema {
	t.Helper()
	var crd struct {
		Spec struct {
			Versions []struct {
				Schema struct {
					Open map[string]any `yaml:"openAPIV3Schema"`
				}
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(kedaFile(t, "config/crd/bases/keda.sh_scaledobjects.yaml"), &crd))
	require.Len(t, crd.Spec.Versions, 1)
	schema := crd.Spec.Versions[0].Schema.Open
	properties := schema["properties"].(map[string]any)
	properties["metadata"] = map[string]any{ // it is Kubernetes' own
		"type": "object", "required": []any{"name"}, "properties": map[string]any{
			"name": map[string]any{"type": "string"}, "namespace": map[string]any{"type": "string"},
		},
	}
	properties["apiVersion"] = map[string]any{"const": "keda.sh/v1alpha1"}
	properties["kind"] = map[string]any{"const": "ScaledObject"}
	schema["required"] = []any{"apiVersion", "kind", "metadata", "spec"}
	closed(schema)
	text, err := json.Marshal(schema)
	require.NoError(t, err)
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	require.NoError(t, c.AddResource("scaledobject.json", value))
	compiled, err := c.Compile("scaledobject.json")
	require.NoError(t, err)
	return compiled
}

func TestTheScaledObjectsAreWhatKEDATakes(t *testing.T) {
	t.Parallel()
	schema := definition(t)
	raw, objects := examples(t)
	for name, value := range raw {
		require.NoError(t, schema.Validate(value), name)
	}
	spec := raw["push.yaml"].(map[string]any)["spec"].(map[string]any)
	spec["cooldown"] = 5
	require.Error(t, schema.Validate(raw["push.yaml"]), "the schema must refuse a typo")

	for name, o := range objects {
		// What the schema cannot say: KEDA supports an idle count of 0 alone, below a
		// minimum.
		require.Equal(t, 0, *o.Spec.IdleReplicaCount, name)
		require.Positive(t, *o.Spec.MinReplicaCount, name)
		require.GreaterOrEqual(t, *o.Spec.MaxReplicaCount, *o.Spec.MinReplicaCount, name)
		require.Len(t, o.Spec.Triggers, 1, name)
	}
}

func TestTheTriggersHaveOnlyEntriesThatSomebodyReads(t *testing.T) {
	t.Parallel()
	var schema struct {
		Scalers []struct {
			Type       string
			Parameters []struct {
				Name     string
				Optional bool
				Default  any
				Readable bool `json:"metadataVariableReadable"`
			}
		}
	}
	require.NoError(t, json.Unmarshal(kedaFile(t, "schema/generated/scalers-schema.json"), &schema, json.MatchCaseInsensitiveNames(true)))
	known := map[string]map[string]bool{"external-push": {"model": true, "kind": false, "threshold": false, "window": false}}
	for _, s := range schema.Scalers {
		if known[s.Type] == nil {
			known[s.Type] = map[string]bool{}
		}
		for _, p := range s.Parameters {
			if p.Readable {
				known[s.Type][p.Name] = !p.Optional && p.Default == nil
			}
		}
	}
	_, objects := examples(t)
	for name, o := range objects {
		trigger := o.Spec.Triggers[0]
		require.NotEmpty(t, known[trigger.Type], "%s: %s", name, trigger.Type)
		for entry := range trigger.Metadata {
			require.Contains(t, known[trigger.Type], entry, name)
		}
		for entry, required := range known[trigger.Type] {
			if required {
				require.Contains(t, trigger.Metadata, entry, name)
			}
		}
	}
}

func TestThePushExampleIsWhatTheScalerTakes(t *testing.T) {
	t.Parallel()
	_, objects := examples(t)
	k := NewKEDA(KEDAOptions{Models: &fakeModels{Recent: NewRecent(), known: map[string]string{"llama-3-70b": "chat"}}})
	got, err := k.trigger(&externalscaler.ScaledObjectRef{ScalerMetadata: objects["push.yaml"].Spec.Triggers[0].Metadata})
	require.NoError(t, err)
	require.Equal(t, trigger{model: "llama-3-70b", kind: "chat", threshold: 32, window: 2 * time.Minute}, got)
}

// query is the one of the example.
func query(t *testing.T) kedaTrigger {
	t.Helper()
	_, objects := examples(t)
	return objects["prometheus.yaml"].Spec.Triggers[0]
}

func TestTheQuerySwitchesBetweenItsTwoValues(t *testing.T) {
	t.Parallel()
	q := query(t).Metadata
	threshold, err := strconv.ParseFloat(q["threshold"], 64)
	require.NoError(t, err)
	activation, err := strconv.ParseFloat(q["activationThreshold"], 64)
	require.NoError(t, err)
	require.InDelta(t, 1, threshold, 0)
	require.Greater(t, activation, 0.0)
	require.Less(t, activation, 1.0)
	for _, part := range []string{"hivenet_pending_demand{", "hivenet_wake_wanted{", "hivenet_routing_requests_routed_total{", "[2m]"} {
		require.Equal(t, 1, strings.Count(q["query"], part), part)
	}
}

func TestTheWebhookExample(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(webhookExamples + "/map.json")
	require.NoError(t, err)
	m, err := sitemap.Parse(data, "site-1")
	require.NoError(t, err)
	p, here := m.Here(target.Target{Model: "llama-3-70b", Kind: target.Chat})
	require.True(t, here)
	require.True(t, p.ScaleFromZero)
	require.Equal(t, 2*time.Minute, p.Wake.Cooldown)
	u, err := url.Parse(p.Wake.URL)
	require.NoError(t, err)

	data, err = os.ReadFile(webhookExamples + "/headers.yaml")
	require.NoError(t, err)
	h, err := ParseHeaders(data)
	require.NoError(t, err)
	head := http.Header{}
	h.addTo(u, head)
	require.Equal(t, "Bearer replace-me", head.Get("Authorization"))

	// The README shows the call as it is made.
	readme, err := os.ReadFile(webhookExamples + "/README.md")
	require.NoError(t, err)
	w := NewWebhooks(WebhookOptions{Demand: func(string) int { return 1 }, Registerer: prometheus.NewRegistry()})
	hook := Hook{Kind: "chat", URL: p.Wake.URL, Method: p.Wake.Method}
	req, err := w.request(t.Context(), &call{
		models: []string{"llama-3-70b"}, hook: &hook, key: "0b7c4a3e-8f5e-4d6b-9a51-2f1f6f0c8d11",
		since: time.Date(2026, 11, 29, 20, 0, 0, 0, time.UTC),
	})
	require.NoError(t, err)
	var text bytes.Buffer
	require.NoError(t, req.Write(&text))
	headText, body, _ := strings.Cut(text.String(), "\r\n\r\n")
	require.Contains(t, string(readme), "    POST "+u.Path+"\n")
	require.Contains(t, headText, "POST "+u.Path+" HTTP/1.1")
	require.Contains(t, headText, "Idempotency-Key: 0b7c4a3e-8f5e-4d6b-9a51-2f1f6f0c8d11")
	require.Contains(t, headText, "Content-Type: application/json")
	require.Contains(t, string(readme), "    "+body+"\n")
}
