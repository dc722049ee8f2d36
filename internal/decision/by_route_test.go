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
	for usual, all := range map[policy.Destination]extproc.Destination{
		"": extproc.ToReplica, policy.Replica: extproc.ToReplica, policy.Route: extproc.ByRoute, policy.Endpoint: extproc.AsPicker,
	} {
		const text = "a: {destination: route}, b: {destination: replica}, c: {destination: endpoint}"
		bubble(t, setup{policy: text, Destination: usual}, func(r *rig) {
			c := r.calls("")
			require.Equal(r.t, extproc.ByRoute, c.Destination("a"))
			require.Equal(r.t, extproc.ToReplica, c.Destination("b"))
			require.Equal(r.t, extproc.AsPicker, c.Destination("c"))
			require.Equal(r.t, all, c.Destination("m"))
			require.True(r.t, r.Picks())
			r.setPolicy("a: {}")
			require.Equal(r.t, all, c.Destination("a"), "the policy has changed")
			require.Equal(r.t, all == extproc.AsPicker, r.Picks())
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
