// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

const structType = "type.googleapis.com/google.protobuf.Struct"

// parseBootstrap reads a bootstrap. A field that this program's Envoy API does not have
// results in a note: the file may be for a newer Envoy.
func parseBootstrap(tree map[string]any) (*bootstrapv3.Bootstrap, []Finding, error) {
	b := &bootstrapv3.Bootstrap{}
	notes, err := unmarshal(wrapUnknown(tree), b, "bootstrap")
	if err != nil {
		return nil, nil, err
	}
	return b, notes, nil
}

// parseYAML parses text, which must be a single document and no Kubernetes manifest.
func parseYAML(text []byte) (map[string]any, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var tree map[string]any
	if err := decoder.Decode(&tree); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("reading the bootstrap: it is empty")
		}
		return nil, fmt.Errorf("reading the bootstrap: %w", err)
	}
	if tree["apiVersion"] != nil && tree["kind"] != nil {
		return nil, errors.New("reading the bootstrap: it is a Kubernetes manifest: check the running gateway, which has the configuration that is made from it")
	}
	var second any
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, errors.New("reading the bootstrap: it has more than one YAML document")
	}
	return tree, nil
}

// typeKey is the key of a message's type in JSON.
const typeKey = "@type"

// wrapUnknown replaces the type of messages that are not linked into this program with
// Struct, which protojson can read. The struct keeps the type under typeKey. A message that
// its sender wrapped in a TypedStruct is taken out of it.
func wrapUnknown(tree any) any {
	switch v := tree.(type) {
	case []any:
		for i := range v {
			v[i] = wrapUnknown(v[i])
		}
	case map[string]any:
		if url, ok := v[typeKey].(string); ok && strings.HasSuffix(url, ".TypedStruct") {
			v = ofTypedStruct(v)
		}
		if url, ok := v[typeKey].(string); ok && !known(url) {
			return map[string]any{typeKey: structType, "value": v}
		}
		for key := range v {
			v[key] = wrapUnknown(v[key])
		}
		return v
	}
	return tree
}

// ofTypedStruct returns the message that a TypedStruct has, or v if it has none.
func ofTypedStruct(v map[string]any) map[string]any {
	url, _ := v["type_url"].(string)
	if camel, ok := v["typeUrl"].(string); ok {
		url = camel
	}
	if url == "" {
		return v
	}
	inside := map[string]any{}
	if value, ok := v["value"].(map[string]any); ok {
		maps.Copy(inside, value)
	}
	inside[typeKey] = url
	return inside
}

// unwrap returns the type of a message that wrapUnknown has wrapped.
func unwrap(a *anypb.Any) (string, error) {
	s := &structpb.Struct{}
	if err := a.UnmarshalTo(s); err != nil {
		return "", fmt.Errorf("reading an extension: %w", err)
	}
	return s.GetFields()[typeKey].GetStringValue(), nil
}

func known(url string) bool {
	_, err := protoregistry.GlobalTypes.FindMessageByURL(url)
	return err == nil
}
