// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/agentreg/agent/engines"
	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/policy"
)

func TestAPolicySaysHowAModelsRequestsAreSentOn(t *testing.T) {
	t.Parallel()
	for usual, all := range map[policy.Destination]bool{"": false, policy.Replica: false, policy.Route: true} {
		bubble(t, setup{policy: "a: {destination: route}, b: {destination: replica}", Destination: usual}, func(r *rig) {
			c := r.calls("")
			require.True(r.t, c.ByRoute("a"))
			require.False(r.t, c.ByRoute("b"))
			require.Equal(r.t, all, c.ByRoute("m"))
			r.setPolicy("a: {}")
			require.Equal(r.t, all, c.ByRoute("a"), "the policy has changed")
		})
	}
}

// A request that comes back is changed as one that is served, although nobody knows its
// caller.
func TestARequestThatComesBackIsChangedForItsEngine(t *testing.T) {
	t.Parallel()
	replica := holdstate.Replica{ID: "a", Engine: engines.Ollama, Address: "10.0.0.1:1"}
	for name, c := range map[string]struct {
		setup setup
		strip bool
	}{
		"without keys":       {setup{}, false},
		"callers have keys":  {setup{keys: oneKey("")}, true},
		"and engines get it": {setup{keys: oneKey(""), ForwardKeys: true}, false},
		"identities":         {setup{Identities: true}, true},
	} {
		bubble(t, c.setup, func(r *rig) {
			forward, engine := r.Returned("m", replica)
			require.Equal(r.t, extproc.Forward{StripKeys: c.strip}, forward, name)
			require.True(r.t, engine.NoOrigin, name)
		})
	}
}
