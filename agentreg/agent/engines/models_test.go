// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/agentreg/protocol"
	"github.com/holdgate/holdgate/internal/target"
)

func TestModelsAreChosenByTheirKinds(t *testing.T) {
	t.Parallel()
	chat, embed, rerank := []target.Kind{target.Chat}, []target.Kind{target.Embedding}, []target.Kind{target.Rerank}
	cases := map[string]struct {
		offers []Offer
		wanted []target.Kind
		models []string
		kinds  []target.Kind
	}{
		"none":                   {nil, nil, nil, embed},
		"the usual kind":         {[]Offer{{"r", rerank}, {"e", embed}}, nil, []string{"e"}, embed},
		"no model has the usual": {[]Offer{{"r", rerank}, {"s", rerank}, {"c", chat}}, nil, []string{"r", "s"}, rerank},
		"the wanted kind":        {[]Offer{{"r", rerank}, {"e", embed}}, rerank, []string{"r"}, rerank},
		"two wanted kinds":       {[]Offer{{"r", rerank}, {"e", embed}}, append(rerank, embed...), []string{"r", "e"}, append(rerank, embed...)},
		"kinds not told":         {[]Offer{{"a", nil}, {"b", nil}}, rerank, []string{"a", "b"}, rerank},
		"a classifier":           {[]Offer{{"a", []target.Kind{}}}, nil, nil, []target.Kind{}},
		"names that cannot be":   {[]Offer{{"", nil}, {"a\n", nil}, {"b", nil}, {"b", nil}}, nil, []string{"b"}, embed},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			models, kinds := Engine{Kinds: []target.Kind{target.Embedding}}.Choose(tc.offers, tc.wanted)
			require.Equal(t, tc.models, models)
			require.Equal(t, tc.kinds, kinds)
		})
	}
	var many []Offer
	for i := range protocol.MaxModels + 1 {
		many = append(many, Offer{Model: fmt.Sprint("m", i)})
	}
	models, _ := Engine{Kinds: []target.Kind{target.Chat}}.Choose(many, nil)
	require.Len(t, models, protocol.MaxModels)
}
