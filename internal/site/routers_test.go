// SPDX-License-Identifier: Apache-2.0

package site_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/polltest"
	"github.com/holdgate/holdgate/internal/shared"
	"github.com/holdgate/holdgate/internal/shared/valkeytest"
	"github.com/holdgate/holdgate/internal/site"
)

func TestRoutersDescribeThemselvesToTheOthers(t *testing.T) {
	t.Parallel()
	server := valkeytest.Start(t)
	var held atomic.Int64
	start := func(host string) *site.Routers {
		var r *site.Routers
		server.Router(func(c *shared.Client) {
			r = site.NewRouters(c, zerolog.Nop(), func() site.Router {
				own := site.Router{Host: host, Version: "1", Started: time.Unix(1, 0).UTC(), Held: int(held.Load())}
				for i := range 1500 {
					own.Models = append(own.Models, site.RouterModel{Model: fmt.Sprintf("m-%04d", i), Serving: 1})
				}
				return own
			})
		})
		return r
	}
	b, a := start("b"), start("a")
	c := start("a")
	polltest.Until(t, "all know each other", func() bool { return len(a.Others()) == 2 && len(b.Others()) == 2 && len(c.Others()) == 2 })
	others := c.Others()
	require.Equal(t, []string{"a", "b"}, []string{others[0].Host, others[1].Host})
	require.Equal(t, a.Own().ID, others[0].ID)
	require.Len(t, others[1].Models, 1000, "no more than these")
	require.Len(t, a.Own().Models, 1500)
	others[1].Models, others[1].ID = nil, ""
	require.Equal(t, site.Router{Host: "b", Version: "1", Started: time.Unix(1, 0).UTC()}, others[1])

	held.Store(7)
	polltest.Until(t, "a beat tells of a change", func() bool { return c.Others()[1].Held == 7 })
	server.Stop()
	polltest.Until(t, "the others are gone", func() bool { return len(c.Others()) == 0 })
}

func TestARouterOfAnotherSiteIsLogged(t *testing.T) {
	t.Parallel()
	server := valkeytest.Start(t)
	const complaint = "give each site a prefix of its own"
	start := func(id string) *lines {
		log := &lines{}
		server.Router(func(c *shared.Client) {
			site.NewRouters(c, zerolog.New(log), func() site.Router { return site.Router{SiteID: id, Started: time.Now()} })
		})
		return log
	}
	one, two := start("one"), start("one")
	other := start("other")
	polltest.Until(t, "all log it", func() bool {
		return one.count(complaint) == 1 && two.count(complaint) == 1 && other.count(complaint) == 1
	})
	require.Equal(t, 1, one.count(`"other_site_id":"other"`))
}

// What others wrote is shown in terminals, so a router with control characters is not listed.
func TestARouterThatCannotBeShownIsNotListed(t *testing.T) {
	t.Parallel()
	server := valkeytest.Start(t)
	var r *site.Routers
	c := server.Router(func(c *shared.Client) {
		r = site.NewRouters(c, zerolog.Nop(), func() site.Router { return site.Router{} })
	})
	for i, text := range []string{
		`{"id":"1","host":"\u001b[2J"}`, `{"id":"2","models":[{"model":"a\u0000"}]}`, `{"id":"3","not_ready":"x\ny"}`,
		`{"id":`, `7`, `{"id":"4","held":"many"}`, "\xff",
	} {
		require.NoError(t, c.Publish(t.Context(), "router", fmt.Sprintf("bad-%d 1 6 router%s", i, text)))
	}
	require.NoError(t, c.Publish(t.Context(), "router", `good 1 6 router{"id":"good","host":"é"}`))
	var others []site.Router
	polltest.Until(t, "the last one is listed", func() bool {
		others = r.Others()
		return slices.ContainsFunc(others, func(o site.Router) bool { return o.ID == "good" })
	})
	require.Len(t, others, 1)
}
