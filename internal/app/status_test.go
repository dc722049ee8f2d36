// SPDX-License-Identifier: Apache-2.0

package app

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/admin"
	"github.com/holdgate/holdgate/internal/target"
)

const statusMap = `{"generation": 7,
	"sites": [{"id": "b", "url": "https://b.example", "scopes": ["eu"]}, {"id": "c", "url": "https://c.example", "scopes": ["us"]}],
	"placements": [
		{"model": "m", "kind": "chat", "site": "here", "scale_from_zero": true},
		{"model": "cold", "kind": "chat", "site": "here", "scale_from_zero": true, "hold_budget": "30s"},
		{"model": "cold", "kind": "chat", "site": "b"}, {"model": "cold", "kind": "chat", "site": "c"},
		{"model": "both", "kind": "chat", "site": "here", "scale_from_zero": true},
		{"model": "both", "kind": "chat", "site": "b"}, {"model": "both", "kind": "chat", "site": "c"},
		{"model": "fixed", "kind": "chat", "site": "here"},
		{"model": "far", "kind": "chat", "site": "b"}],
	"hints": [
		{"model": "cold", "kind": "chat", "site": "b", "state": "cold", "observed_at": "2000-01-01T00:00:00Z"},
		{"model": "cold", "kind": "chat", "site": "c", "state": "cold", "observed_at": "2000-01-01T00:00:00Z"},
		{"model": "both", "kind": "chat", "site": "c", "state": "warm", "observed_at": "2000-01-01T00:00:00Z"}]}`

func temporary(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestTheDestinationIsVisible(t *testing.T) {
	t.Parallel()
	file := temporary(t, "models: {m: {destination: replica}}")
	a := newApp(t, "--destination=route", "--policy-file="+file)
	for model, want := range map[string]string{"m": "replica", "other": "route"} {
		e, err := a.decider.Explain(admin.ExplainQuery{Model: model})
		require.NoError(t, err)
		require.Equal(t, want, e.Destination)
	}
	_, err := a.maps.Push([]byte(statusMap), true)
	require.NoError(t, err)
	for _, m := range a.status().Models {
		want := "route"
		if m.Model == "m" {
			want = "replica"
		}
		require.Equal(t, want, m.Destination, m.Model)
	}
}

func TestStatusShowsModelsAndAgents(t *testing.T) {
	t.Parallel()
	require.Equal(t, &admin.Status{
		NotReady: "no sibling map was pushed or restored yet: push one with holdgate map push -f FILE", SiteID: "here",
		Models: []admin.ModelStatus{}, Agents: []admin.AgentStatus{},
	}, newApp(t).status())
	bubble(t, func(r *rig) {
		_, err := r.maps.Push([]byte(statusMap), true)
		require.NoError(t, err)
		pass(3 * time.Second)
		r.join(pb.State_STATE_SERVING, "m", "new")
		w, err := r.machine.Hold(holdstate.Request{Target: target.Target{Model: "cold"}, Tenant: "acme"})
		require.NoError(t, err)
		synctest.Wait()
		s := r.status()
		require.True(t, s.Ready)
		require.Equal(t, time.Now(), s.Models[1].WakingSince)
		s.Models[1].WakingSince = time.Time{}
		require.Equal(t, []admin.WaitStatus{{Model: "cold", Kind: "chat", Tenant: "acme", Requests: 1, Held: 1, Since: time.Now()}}, s.Waiting)
		require.Equal(t, []string{"b", "c"}, []string{s.Siblings[0].Site, s.Siblings[1].Site})
		require.Equal(t, "cold", s.Siblings[0].Hints[0].State)
		require.Equal(t, []admin.ModelStatus{
			{Model: "both", State: "asleep", Destination: "replica"},
			{Model: "cold", State: "waking", Demand: 1, Wanted: true, Destination: "replica"},
			{Model: "far", State: "elsewhere", Destination: "replica"},
			{Model: "fixed", State: "asleep", Destination: "replica"},
			{Model: "m", State: "warm", Serving: 1, Destination: "replica"},
			{Model: "new", State: "warm", Serving: 1, Destination: "replica"},
		}, s.Models)
		require.Len(t, s.Agents, 1)
		require.Equal(t, []string{"a", "serving", "127.0.0.1:8000"}, []string{s.Agents[0].ID, s.Agents[0].State, s.Agents[0].Address})
		require.True(t, s.Agents[0].Routing)
		s.Map.ReceivedAt, s.Map.ETag = time.Time{}, ""
		require.Equal(t, &admin.MapStatus{Generation: 7, Source: "pushed", AgeSeconds: 3, Models: 5, Holdable: 3, Hints: 3}, s.Map)
		w.Report(holdstate.Drain)
	})
}

func TestExplainAndStatusSayForWhoseRoomAModelWaits(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		_, err := r.maps.Push([]byte(statusMap), true)
		require.NoError(t, err)
		inGroup := func(h *pb.Hello) {
			h.CanWake, h.Group = true, &pb.Group{Name: "gpu0", Room: 1, Cost: 1}
			h.MinUpTime = durationpb.New(time.Minute)
		}
		r.joinAs("awake", pb.State_STATE_SERVING, inGroup, "m")
		r.joinAs("asleep", pb.State_STATE_ASLEEP, inGroup, "cold")
		pass(3 * time.Second)
		w, err := r.machine.Hold(holdstate.Request{Target: target.Target{Model: "cold"}})
		require.NoError(t, err)
		pass(7 * time.Second)
		const why = "waits for room in group gpu0, which awake must free first, in 50s at the earliest"
		require.Equal(t, why, r.status().Models[1].Waits)
		e := r.explain(admin.ExplainQuery{Model: "cold", KeyID: "stays"})
		require.Equal(t, "the map places the model here with scale_from_zero; distinct requests that wait for it: 1; it "+why, e.Steps[6].Why)
		w.Report(holdstate.Drain)
	}, "--auth-file", temporary(t, "keys: [{id: stays, tenant: acme, key_hash: "+hashOf("stays")+", redirect: never}]"))
}
