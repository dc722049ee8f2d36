// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"encoding/json/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheModelsOfACallerAreThoseThatItMayUse(t *testing.T) {
	t.Parallel()
	bubble(t, setup{keys: oneKey(", models: [m, gone]"), placements: rigMap}, func(r *rig) {
		call := r.calls(testKey)
		var list modelList
		require.NoError(t, json.Unmarshal(call.Models(""), &list))
		require.Len(t, list.Data, 1)
		require.Equal(t, "m", list.Data[0].ID)
		require.NotNil(t, call.Models("m"))
		require.Nil(t, call.Models("hour"))
	})
	bubble(t, setup{placements: rigMap}, func(r *rig) {
		var list modelList
		require.NoError(t, json.Unmarshal(r.calls("").Models(""), &list))
		require.Len(t, list.Data, 3)
		require.NoError(t, json.Unmarshal(r.Resume().Models(""), &list))
		require.Empty(t, list.Data, "its caller is not known")
	})
}

// A model that is placed here is asleep until an agent registers, one of another site is elsewhere.
func TestTheStateOfAModelThatNoAgentHas(t *testing.T) {
	t.Parallel()
	bubble(t, setup{placements: explainMap}, func(r *rig) {
		states := map[string]string{}
		for _, m := range r.Models() {
			states[m.Model] = m.State
		}
		require.True(t, r.placements().placed("fixed"))
		require.False(t, r.placements().placed("elsewhere"))
		require.Equal(t, map[string]string{"both": "asleep", "cold": "asleep", "far": "elsewhere", "fixed": "asleep", "m": "asleep"}, states)
	})
}
