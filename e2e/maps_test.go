// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// generation is a map with a generation, which holds a model of its own.
func generation(n int) string {
	return fmt.Sprintf(`{"generation": %d, "placements": [{"model": "m%[1]d", "kind": "chat", "site": "here", "scale_from_zero": true}]}`, n)
}

// The newest map is in force on all routers, whatever of the site was away when it was pushed.
func TestTheMapOfASiteOutlivesItsParts(t *testing.T) {
	rs := startRouters(t, 3)
	one, two, three := rs.all[0], rs.all[1], rs.all[2]
	push := func(r *router, n int) {
		t.Helper()
		answer := r.putMap(generation(n))
		require.Equal(t, http.StatusOK, answer.status, answer.body)
	}
	has := func(r *router, n int) bool {
		return strings.Contains(r.metrics(), fmt.Sprintf(`hivenet_pending_demand{model="m%d"}`, n))
	}
	push(one, 1)
	three.eventually("the map is in force", func() bool { return has(three, 1) })
	require.Equal(t, http.StatusConflict, two.putMap(generation(0)).status)

	// A router that was away has the map when it says that it is ready.
	three.kill()
	push(two, 2)
	three.serve()
	three.ready()
	require.True(t, has(three, 2))

	// What two routers are given while the server is away, the higher generation wins.
	rs.valkey.Stop()
	push(one, 4)
	push(two, 3)
	rs.valkey.Restart()
	for _, r := range rs.all {
		r.eventually("generation 4 is in force", func() bool { return has(r, 4) })
	}

	// Everything ends. The routers restore their maps, and any of them tells of all.
	for _, r := range rs.all {
		r.kill()
	}
	rs.valkey.Stop()
	rs.valkey.Restart()
	for _, r := range rs.all {
		r.serve()
	}
	for _, r := range rs.all {
		r.ready()
		r.eventually("the map is in force", func() bool { return has(r, 4) })
	}
	two.eventually("status shows three routers with the map", func() bool {
		p := start(t, "status", "--site", "--admin", "http://"+two.admin)
		require.NoError(t, p.ends(), p.out.String())
		return strings.Count(p.out.String(), "generation 4  -\n") == 3
	})
}
