// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// encoded returns Metadata with the value of a key in a namespace, beside others.
func encoded(t *testing.T, value any) []byte {
	t.Helper()
	fields, err := structpb.NewStruct(map[string]any{"key": value, "other": []any{"x"}})
	require.NoError(t, err)
	data, err := proto.Marshal(&corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"space": fields, "another": {}}})
	require.NoError(t, err)
	return data
}

func TestEachStringOfMetadata(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		value any
		found bool
		want  []string
	}{
		"a list":         {[]any{"a", "b"}, true, []string{"a", "b"}},
		"a mixed list":   {[]any{"a", 1.5, nil, []any{"in"}, "b"}, true, []string{"a", "b"}},
		"an empty list":  {[]any{}, true, nil},
		"a string":       {"a,b", true, []string{"a,b"}},
		"an empty one":   {"", true, []string{""}},
		"null":           {nil, false, nil},
		"a number":       {7.0, false, nil},
		"a struct":       {map[string]any{"key": "a"}, false, nil},
		"a long element": {[]any{string(make([]byte, 70000))}, true, []string{string(make([]byte, 70000))}},
	} {
		var got []string
		found := EachString(encoded(t, tt.value), "space", "key", func(text []byte) { got = append(got, string(text)) })
		require.Equal(t, tt.found, found, name)
		require.Equal(t, tt.want, got, name)
	}
	for name, data := range map[string][]byte{
		"none": nil, "damaged": {0x0a, 0x7f},
	} {
		require.False(t, EachString(data, "space", "key", func([]byte) { t.Fatal(name) }), name)
	}
	for _, at := range [][2]string{{"space", "missing"}, {"missing", "key"}, {"another", "key"}} {
		require.False(t, EachString(encoded(t, "a"), at[0], at[1], func([]byte) { t.Fatal(at) }), at)
	}
}

func TestMetadataWithoutTheKeyCostsNoMemory(t *testing.T) { //nolint:paralleltest // it counts allocations
	data := encoded(t, []any{"a"})
	n := 0
	require.Zero(t, testing.AllocsPerRun(100, func() {
		EachString(nil, "space", "key", func([]byte) { n++ })
		EachString(data, "missing", "key", func([]byte) { n++ })
		EachString(data, "space", "key", func([]byte) { n++ })
	}))
	require.Equal(t, 101, n)
}
