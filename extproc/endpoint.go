// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"github.com/holdgate/holdgate/sitemap"
)

// API is the protocol family of an endpoint: it shapes errors and keepalives.
type API uint8

// The protocol families.
const (
	OpenAI API = iota
	Anthropic
	Responses
)

// Endpoint is one inference path.
type Endpoint struct {
	Path string
	Kind sitemap.Kind
	API  API
	// CountTokens marks the endpoint that is never held: the real request follows.
	CountTokens bool
}

var endpoints = map[string]*Endpoint{}

func init() { //nolint:gochecknoinits // one table, two ways to read it
	for _, e := range []Endpoint{
		{Path: "/v1/chat/completions", Kind: sitemap.Chat, API: OpenAI},
		{Path: "/v1/completions", Kind: sitemap.Chat, API: OpenAI},
		{Path: "/v1/responses", Kind: sitemap.Chat, API: Responses},
		{Path: "/v1/messages", Kind: sitemap.Chat, API: Anthropic},
		{Path: "/v1/messages/count_tokens", Kind: sitemap.Chat, API: Anthropic, CountTokens: true},
		{Path: "/v1/embeddings", Kind: sitemap.Embedding, API: OpenAI},
		{Path: "/v1/rerank", Kind: sitemap.Rerank, API: OpenAI},
	} {
		endpoints[e.Path] = &e
	}
}
