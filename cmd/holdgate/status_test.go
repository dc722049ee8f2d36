// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/admin"
)

func TestStatusPrintsTheRoutersOfTheSite(t *testing.T) {
	t.Parallel()
	started := time.Now().Add(-time.Hour)
	d := admin.Deps{
		Status: func() *admin.Status { return &admin.Status{} },
		SiteStatus: func() *admin.SiteStatus {
			return &admin.SiteStatus{
				SiteID: "fr-1", Map: &admin.MapStatus{Generation: 7, Source: "shared", ETag: `"aabb"`},
				Routers: []admin.RouterStatus{
					{ID: "0123456789", This: true, Host: "pod-1", Admin: "127.0.0.1:9003", Version: "1.2", Started: started, State: "ready", Held: 3, InFlight: 5, Generation: 7, MapTag: "aa"},
					{ID: "abcdefghij", Host: "pod-2", Version: "1.2", Started: started, State: "draining", Generation: 8, MapTag: "cc"},
					{ID: "short", Host: "pod-3", Version: "1.3", Started: started, State: "not_ready", NotReady: "no map"},
				},
				Models: []admin.ModelStatus{{Model: "m", State: "waking", Demand: 3, Wanted: true}},
			}
		},
	}
	out, err := runAgainst(t, d, "status", "--site")
	require.NoError(t, err)
	var lines []string
	for line := range strings.Lines(out) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	require.Equal(t, []string{
		"site fr-1",
		"map generation 7, shared 0s ago, 0 models of which 0 may be held here, 0 hints",
		"",
		"ROUTER HOST ADMIN VERSION UP FOR STATE HELD IN FLIGHT MAP NOTE",
		"01234567 (this) pod-1 127.0.0.1:9003 1.2 1h0m0s ready 3 5 generation 7 -",
		"abcdefgh pod-2 1.2 1h0m0s draining 0 0 generation 8, another one -",
		"short pod-3 1.3 1h0m0s not ready 0 0 none no map",
		"",
		"MODEL STATE SERVING ASLEEP AGENT WOKEN DEMAND WANTED DESTINATION NOTE",
		"m waking 0 0 no 3 yes - -",
	}, lines)

	d.SiteStatus = func() *admin.SiteStatus {
		return &admin.SiteStatus{Alone: "it has no --shared", Routers: []admin.RouterStatus{{This: true, State: "ready", Started: started}}}
	}
	out, err = runAgainst(t, d, "status", "--site")
	require.NoError(t, err)
	require.Contains(t, out, "only this router is known  it has no --shared")
	require.Contains(t, out, "- (this)")
}
