// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

const yamlHeader = `# Rendered by holdgate envoy render. docs/envoy.md says which settings holding
# depends on; holdgate envoy check reports those that were changed.
`

// YAML encodes b, always with the same text for the same bootstrap: protojson alone
// varies its white space from build to build on purpose.
func YAML(b *bootstrapv3.Bootstrap) ([]byte, error) { return encode(b, yamlHeader) }

func encode(m proto.Message, head string) ([]byte, error) {
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encoding the bootstrap: %w", err)
	}
	var tree any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&tree); err != nil {
		return nil, fmt.Errorf("decoding the bootstrap: %w", err)
	}
	node, err := yamlNode(tree)
	if err != nil {
		return nil, err
	}
	out := bytes.NewBufferString(head)
	encoder := yaml.NewEncoder(out)
	encoder.SetIndent(2)
	if err := encoder.Encode(node); err != nil {
		return nil, fmt.Errorf("encoding the bootstrap: %w", err)
	}
	if err := encoder.Close(); err != nil {
		return nil, fmt.Errorf("encoding the bootstrap: %w", err)
	}
	return out.Bytes(), nil
}

// yamlNode converts tree, with the identifying keys of each map first.
func yamlNode(tree any) (*yaml.Node, error) {
	switch v := tree.(type) {
	case map[string]any:
		return yamlMap(v)
	case []any:
		list := &yaml.Node{Kind: yaml.SequenceNode}
		for _, item := range v {
			n, err := yamlNode(item)
			if err != nil {
				return nil, err
			}
			list.Content = append(list.Content, n)
		}
		return list, nil
	case json.Number:
		tag := "!!int"
		if _, err := v.Int64(); err != nil {
			tag = "!!float"
		}
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: v.String()}, nil
	default:
		n := &yaml.Node{}
		if err := n.Encode(v); err != nil {
			return nil, fmt.Errorf("encoding %v: %w", v, err)
		}
		return n, nil
	}
}

func yamlMap(m map[string]any) (*yaml.Node, error) {
	object := &yaml.Node{Kind: yaml.MappingNode}
	for _, key := range slices.SortedFunc(maps.Keys(m), byRank) {
		value, err := yamlNode(m[key])
		if err != nil {
			return nil, err
		}
		name := &yaml.Node{}
		name.SetString(key)
		object.Content = append(object.Content, name, value)
	}
	return object, nil
}

// byRank orders keys: the type, then the name, then alphabetically.
func byRank(a, b string) int {
	rank := map[string]int{"@type": -2, "name": -1}
	if d := rank[a] - rank[b]; d != 0 {
		return d
	}
	return bytes.Compare([]byte(a), []byte(b))
}
