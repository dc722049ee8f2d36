// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
)

func TestAnEngineWithFewerRequestsThanSlotsTakenIsNoticed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := newRouter(t)
		var fewer []string
		rt.opts.OnFewer = func(a *AgentInfo, most int, first time.Time) {
			fewer = append(fewer, fmt.Sprintf("%s at most %d since %v ago", a.ID, most, time.Since(first)))
		}
		a := rt.connect(aHello())
		report := func(n uint32) {
			a.status(pb.State_STATE_SERVING, func(s *pb.Status) { s.InFlight = &n })
		}
		one, _ := rt.Take(llama)
		two, _ := rt.Take(llama)
		beat := rt.opts.Liveness / 3
		for _, n := range []uint32{1, 2, 1} { // never twice in a row
			time.Sleep(beat)
			report(n)
		}
		report(0) // a change of its health
		require.Empty(t, fewer)
		time.Sleep(beat)
		report(0)
		require.Equal(t, []string{"a at most 1 since 5s ago"}, fewer)
		time.Sleep(beat)
		a.status(pb.State_STATE_SERVING) // it reports no number
		time.Sleep(beat)
		report(0)
		one.Release()
		two.Release()
		time.Sleep(beat)
		report(0)
		require.Len(t, fewer, 1)
	})
}
