// SPDX-License-Identifier: Apache-2.0

// Package engines is the table of inference engines: at which paths each reports its health,
// its models and how busy it is, and whether it must be warmed up. To add an engine, add a
// row to table, and responses of the engine to enginestest.
package engines

import (
	"context"
	"encoding/json/v2"
	"fmt"
	"maps"
	"slices"
	"strings"

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

// Engine describes the endpoints of an engine.
type Engine struct {
	// Health is the path that answers 2xx when the engine can serve.
	Health string
	// Kinds are the kinds that the engine can serve, the usual one first.
	Kinds []target.Kind
	// Warmup: a first chat completion takes much longer than the next ones.
	Warmup bool
	// models are the endpoints that may list the models; the first that answers is used.
	models []modelList
	// signals are the endpoints that may report how busy the engine is; the first that
	// answers is used.
	signals []signalSource
}

// openAI is the list of models of OpenAI's API.
var openAI = modelList{"/v1/models", parseModels}

var table = map[string]Engine{
	VLLM: {
		Health: "/health",
		Kinds:  []target.Kind{target.Chat, target.Embedding, target.Rerank},
		models: []modelList{openAI},
		signals: []signalSource{{"/metrics", prometheus{
			running: "vllm:num_requests_running", waiting: "vllm:num_requests_waiting",
			// The second name is that of older versions.
			kvUse: []string{"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"},
		}.parse}},
	},
	SGLang: {
		Health: "/health",
		Kinds:  []target.Kind{target.Chat, target.Embedding, target.Rerank},
		models: []modelList{openAI},
		Warmup: true,
		signals: []signalSource{{"/metrics", prometheus{
			running: "sglang:num_running_reqs", waiting: "sglang:num_queue_reqs",
			kvUse: []string{"sglang:token_usage"},
		}.parse}},
	},
	Ollama: {
		Health: "/api/version",
		Kinds:  []target.Kind{target.Chat, target.Embedding},
		models: []modelList{{"/api/tags", parseTags}},
		Warmup: true,
	},
	LlamaCpp: {
		Health: "/health",
		Kinds:  []target.Kind{target.Chat, target.Embedding, target.Rerank},
		models: []modelList{openAI},
		signals: []signalSource{
			{"/metrics", prometheus{
				running: "llamacpp:requests_processing", waiting: "llamacpp:requests_deferred",
				// Only older versions have it.
				kvUse: []string{"llamacpp:kv_cache_usage_ratio"},
			}.parse},
			{"/slots", parseSlots},
		},
	},
	Infinity: {
		Health: "/health",
		Kinds:  []target.Kind{target.Embedding, target.Rerank},
		// The second path is that of --url-prefix /v1.
		models:  []modelList{{"/models", parseModels}, openAI},
		signals: []signalSource{{"/models", parseQueues}, {"/v1/models", parseQueues}},
	},
	TEI: {
		Health:  "/health",
		Kinds:   []target.Kind{target.Embedding, target.Rerank},
		models:  []modelList{{"/info", parseInfo}},
		signals: []signalSource{{"/metrics", prometheus{waiting: "te_queue_size"}.parse}},
	},
	Custom: {
		Health: "/health",
		Kinds:  []target.Kind{target.Chat, target.Embedding, target.Rerank},
		models: []modelList{openAI},
	},
}

// Names returns the names of all engines, in one line.
func Names() string { return strings.Join(slices.Sorted(maps.Keys(table)), ", ") }

// Find returns the engine with this name.
func Find(name string) (Engine, error) {
	e, ok := table[name]
	if !ok {
		return Engine{}, fmt.Errorf("%q is not known: use %s", name, Names())
	}
	return e, nil
}

// Get sends a GET request to an engine and returns the body of a 2xx response.
type Get func(ctx context.Context, path string) ([]byte, error)

// WarmupRequest returns the path and the body of a chat completion of one token, for which
// engines load everything that they have not loaded at their start.
func WarmupRequest(model string) (path string, body []byte, err error) {
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	body, err = json.Marshal(struct {
		Model     string    `json:"model"`
		Messages  []message `json:"messages"`
		MaxTokens int       `json:"max_tokens"`
	}{model, []message{{"user", "Hi"}}, 1})
	return "/v1/chat/completions", body, err
}
