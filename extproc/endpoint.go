// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"strings"

	"github.com/holdgate/holdgate/internal/refusal"
	"github.com/holdgate/holdgate/internal/target"
)

// Endpoint is one inference path.
type Endpoint struct {
	Path string
	Kind target.Kind
	API  refusal.API
	// CountTokens marks the endpoint that counts tokens. It is never held, because the
	// request that it counts follows.
	CountTokens bool
}

var endpoints = map[string]*Endpoint{}

func init() { //nolint:gochecknoinits // the map is made from a list, so that no path is written twice
	for _, e := range []Endpoint{
		{Path: "/v1/chat/completions", Kind: target.Chat, API: refusal.OpenAI},
		{Path: "/v1/completions", Kind: target.Chat, API: refusal.OpenAI},
		{Path: "/v1/responses", Kind: target.Chat, API: refusal.Responses},
		{Path: "/v1/messages", Kind: target.Chat, API: refusal.Anthropic},
		{Path: "/v1/messages/count_tokens", Kind: target.Chat, API: refusal.Anthropic, CountTokens: true},
		{Path: "/v1/embeddings", Kind: target.Embedding, API: refusal.OpenAI},
		{Path: "/v1/rerank", Kind: target.Rerank, API: refusal.OpenAI},
	} {
		endpoints[e.Path] = &e
	}
}

// meantPath returns the API path that a client most likely meant by an unknown one, or an
// empty string. Base URLs often contain /v1 twice or not at all, or lead to double slashes.
func meantPath(path string) string {
	parts := strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
	for len(parts) > 0 && parts[0] == "v1" {
		parts = parts[1:]
	}
	meant := "/v1/" + strings.Join(parts, "/")
	if endpoints[meant] != nil || meant == modelsPath {
		return meant
	}
	if len(parts) > 1 && modelsPath == "/v1/"+parts[0] {
		return modelsPath + "/{model}"
	}
	return ""
}
