// SPDX-License-Identifier: Apache-2.0

// Package target names what a request asks for and what an agent serves: a model
// through one kind of endpoint.
package target

import "fmt"

// Kind is a kind of endpoint. A model is placed, held and served separately for each kind.
type Kind uint8

// The kinds, in the order of their wire names.
const (
	Chat Kind = iota
	Embedding
	Rerank
)

// Kinds lists every kind, for loops over all of them.
var Kinds = [...]Kind{Chat, Embedding, Rerank}

var kindNames = [...]string{Chat: "chat", Embedding: "embedding", Rerank: "rerank"}

// String returns the name that the map, the metrics and the API use.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// ParseKind returns the kind with a name.
func ParseKind(s string) (Kind, error) {
	for k, name := range kindNames {
		if s == name {
			return Kind(k), nil
		}
	}
	return 0, fmt.Errorf("%q is not a kind: use chat, embedding or rerank", s)
}

// Target is what a request asks for and what an agent serves: one model
// through one kind of endpoint.
type Target struct {
	Model string
	Kind  Kind
}
