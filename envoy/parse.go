// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoregistry"
)

const structType = "type.googleapis.com/google.protobuf.Struct"

// Parse parses a bootstrap of any origin, YAML or JSON. Extensions that are not linked
// into this program are kept as plain structs. A field that this program's Envoy API
// does not have results in a note: the file may be for a newer Envoy.
func Parse(text []byte) (*bootstrapv3.Bootstrap, []Finding, error) {
	tree, err := parseYAML(text)
	if err != nil {
		return nil, nil, err
	}
	encoded, err := json.Marshal(wrapUnknown(tree))
	if err != nil {
		return nil, nil, fmt.Errorf("reading the bootstrap: %w", err)
	}
	b := &bootstrapv3.Bootstrap{}
	strict := protojson.Unmarshal(encoded, b)
	if strict == nil {
		return b, nil, nil
	}
	b = &bootstrapv3.Bootstrap{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(encoded, b); err != nil {
		return nil, nil, fmt.Errorf("reading the bootstrap: %w", err)
	}
	return b, []Finding{{Path: "bootstrap", Text: "has a field that this program does not know: " + strict.Error(), Note: true}}, nil
}

// parseYAML parses text, which must be a single document.
func parseYAML(text []byte) (any, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var tree map[string]any
	if err := decoder.Decode(&tree); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("reading the bootstrap: it is empty")
		}
		return nil, fmt.Errorf("reading the bootstrap: %w", err)
	}
	var second any
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, errors.New("reading the bootstrap: it has more than one YAML document")
	}
	return tree, nil
}

// wrapUnknown replaces the type of messages that are not linked into this program with
// Struct, which protojson can read.
func wrapUnknown(tree any) any {
	switch v := tree.(type) {
	case []any:
		for i := range v {
			v[i] = wrapUnknown(v[i])
		}
	case map[string]any:
		if url, ok := v["@type"].(string); ok && !known(url) {
			delete(v, "@type")
			return map[string]any{"@type": structType, "value": v}
		}
		for key := range v {
			v[key] = wrapUnknown(v[key])
		}
	}
	return tree
}

func known(url string) bool {
	_, err := protoregistry.GlobalTypes.FindMessageByURL(url)
	return err == nil
}
