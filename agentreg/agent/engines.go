// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/holdgate/holdgate/agentreg/protocol"
	"github.com/holdgate/holdgate/internal/target"
)

// The engines whose endpoints are known.
const (
	VLLM     = "vllm"
	SGLang   = "sglang"
	Ollama   = "ollama"
	LlamaCpp = "llamacpp"
	Infinity = "infinity"
	TEI      = "tei"
	Custom   = "custom"
)

// engineKind is what is known of an engine's endpoints.
type engineKind struct {
	// health is the path that answers 2xx when the engine can serve.
	health string
	// kinds are what the engine can have, the usual one first.
	kinds []target.Kind
	// lists are where the engine names its models; the first that answers counts.
	lists []listing
	// warmup: a first chat completion takes much longer than the next ones.
	warmup bool
	// signals are where the engine says how busy it is; the first that answers
	// counts.
	signals []source
}

// openAI is what every server with OpenAI's interface has.
var openAI = listing{"/v1/models", parseModels}

var engines = map[string]engineKind{
	VLLM: {
		health: "/health",
		kinds:  []target.Kind{target.Chat, target.Embedding, target.Rerank},
		lists:  []listing{openAI},
		signals: []source{{"/metrics", prometheus{
			running: "vllm:num_requests_running", waiting: "vllm:num_requests_waiting",
			// The second name is that of older versions.
			kvUse: []string{"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"},
		}.parse}},
	},
	SGLang: {
		health: "/health",
		kinds:  []target.Kind{target.Chat, target.Embedding, target.Rerank},
		lists:  []listing{openAI},
		warmup: true,
		signals: []source{{"/metrics", prometheus{
			running: "sglang:num_running_reqs", waiting: "sglang:num_queue_reqs",
			kvUse: []string{"sglang:token_usage"},
		}.parse}},
	},
	Ollama: {
		health: "/api/version",
		kinds:  []target.Kind{target.Chat, target.Embedding},
		lists:  []listing{{"/api/tags", parseTags}},
		warmup: true,
	},
	LlamaCpp: {
		health: "/health",
		kinds:  []target.Kind{target.Chat, target.Embedding, target.Rerank},
		lists:  []listing{openAI},
		signals: []source{
			{"/metrics", prometheus{
				running: "llamacpp:requests_processing", waiting: "llamacpp:requests_deferred",
				// Only older versions have it.
				kvUse: []string{"llamacpp:kv_cache_usage_ratio"},
			}.parse},
			{"/slots", parseSlots},
		},
	},
	Infinity: {
		health: "/health",
		kinds:  []target.Kind{target.Embedding, target.Rerank},
		// The second path is that of --url-prefix /v1.
		lists:   []listing{{"/models", parseModels}, openAI},
		signals: []source{{"/models", parseQueues}, {"/v1/models", parseQueues}},
	},
	TEI: {
		health:  "/health",
		kinds:   []target.Kind{target.Embedding, target.Rerank},
		lists:   []listing{{"/info", parseInfo}},
		signals: []source{{"/metrics", prometheus{waiting: "te_queue_size"}.parse}},
	},
	Custom: {
		health: "/health",
		kinds:  []target.Kind{target.Chat, target.Embedding, target.Rerank},
		lists:  []listing{openAI},
	},
}

// Engines are the names that a Config may use, in one line.
func Engines() string { return strings.Join(slices.Sorted(maps.Keys(engines)), ", ") }

// kinds are the kinds that are given, those of the names that are right.
func (c *Config) kinds() []target.Kind {
	var kinds []target.Kind
	for _, name := range c.Kinds {
		if k, err := protocol.ParseKind(name); err == nil {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

// KindsOf gives the kinds that an engine can have, the usual one first.
func KindsOf(engine string) ([]target.Kind, error) {
	e, ok := engines[engine]
	if !ok {
		return nil, fmt.Errorf("%q is not known: use %s", engine, Engines())
	}
	return e.kinds, nil
}
