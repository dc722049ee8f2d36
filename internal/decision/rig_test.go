// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/agentreg/agentregtest"
	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/access"
	"github.com/holdgate/holdgate/internal/admission"
	"github.com/holdgate/holdgate/internal/backend"
	"github.com/holdgate/holdgate/internal/policy"
	"github.com/holdgate/holdgate/internal/reload"
	"github.com/holdgate/holdgate/internal/target"
	"github.com/holdgate/holdgate/sitemap"
)

var chatOfM = target.Target{Model: "m", Kind: target.Chat}

const rigMap = `{"placements": [
	{"model": "m", "kind": "chat", "site": "here", "scale_from_zero": true},
	{"model": "hour", "kind": "chat", "site": "here", "scale_from_zero": true, "hold_budget": "1h"},
	{"model": "half", "kind": "chat", "site": "here", "scale_from_zero": true, "hold_budget": "30s"}]}`

// setup is what a rig is made with. The zero value is a site without keys and policies.
type setup struct {
	Options

	keys, policy, placements string // the texts of the files
	limits                   holdstate.Limits
	others                   int // requests that other routers hold, for each model
	admitted                 int // requests of m that another router has admitted
}

// rig is a decider with everything that it decides from. It needs a bubble.
type rig struct {
	*Decider
	t      require.TestingT
	ctx    context.Context
	policy *policy.Policy

	mu    sync.Mutex
	holds map[holdstate.Outcome]int
}

func newRig(ctx context.Context, t require.TestingT, s setup) *rig {
	r := &rig{t: t, ctx: ctx, holds: map[holdstate.Outcome]int{}}
	r.setPolicy(s.policy)
	o := s.Options
	if s.placements != "" {
		o.SiteID = "here"
	}
	if o.HoldBudget == 0 {
		o.HoldBudget = 5 * time.Minute
	}
	if s.keys != "" {
		o.Keys = keysFrom(t, s.keys)
	}
	if o.Backends == nil {
		o.Backends, _ = backend.New(nil)
	}
	o.Policies = func() *policy.Policy { return r.policy }
	o.Registry = agentreg.New(agentreg.Options{
		Liveness: 24 * time.Hour, OnChange: func(t target.Target) { o.Machine.Update(t) },
	})
	o.Capacity = admission.NewCapacity(o.Registry, o.Policies)
	if s.admitted > 0 {
		o.Capacity.Share(admission.Sharing{
			Routers: func() int { return 2 }, OnChange: func(string) {}, Retry: func(string) { o.Machine.UpdateAll() },
		})
		o.Capacity.SetOthers("m", []admission.Occupancy{{Requests: int64(s.admitted), WaitsSince: time.Now()}})
	}
	counted := func(outcome holdstate.Outcome, _ time.Duration) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.holds[outcome]++
	}
	for _, limit := range []*int{&s.limits.PerModel, &s.limits.PerKey, &s.limits.Total} {
		if *limit == 0 {
			*limit = 100
		}
	}
	s.limits.Bytes = 1 << 30
	o.Machine = holdstate.New(holdstate.Options{Limits: s.limits, Slots: o.Capacity, Cooldown: time.Second, OnOutcome: counted})
	o.Maps = sitemap.NewStore(o.SiteID, func(_, _ *sitemap.Map) {})
	if s.placements != "" {
		_, err := o.Maps.Push([]byte(s.placements), false)
		require.NoError(t, err)
	}
	if s.others > 0 {
		o.Holds = &fakeHolds{limits: s.limits, others: s.others, counts: map[string]int{}}
	}
	o.Log = zerolog.Nop()
	o.Events = Events{
		Waits: func(string) {}, HoldEnded: counted, Rejected: func(string, error) {}, TokenRejected: func(error) {},
	}
	r.Decider = New(o)
	return r
}

// bubble runs f with a rig.
func bubble(t *testing.T, s setup, f func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		f(newRig(ctx, t, s))
		end()
		synctest.Wait()
	})
}

// setPolicy replaces the policy file.
func (r *rig) setPolicy(text string) {
	p, err := policy.Parse([]byte("models: {" + text + "}"))
	require.NoError(r.t, err)
	r.policy = p
}

// calls begins a request with a key, or with none.
func (r *rig) calls(key string) extproc.Call {
	call, why := r.Authenticate(extproc.Credentials{APIKey: key})
	require.Nil(r.t, why)
	return call
}

func (r *rig) ended(o holdstate.Outcome) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.holds[o]
}

// chat is a request for a model, with nothing in it.
func chat(model string) *extproc.Request {
	return &extproc.Request{
		Method: "POST", PathAndQuery: "/v1/chat/completions", Endpoint: &extproc.Endpoint{Kind: target.Chat}, Model: model, Patience: -1,
	}
}

const testKey = "hg-a-key"

// hashOf is what a keys file has of a key.
func hashOf(key string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(key))) }

// oneKey is the text of a keys file with testKey, whose entry has more.
func oneKey(more string) string {
	return fmt.Sprintf("keys: [{id: k, tenant: acme, key_hash: %s%s}]", hashOf(testKey), more)
}

// keysFrom loads a keys file with this text.
func keysFrom(t require.TestingT, text string) *access.Store {
	dir, err := os.MkdirTemp("", "decision")
	require.NoError(t, err)
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "keys.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	keys, err := access.Load(path, nil, reload.Options{Setting: "auth-file", Log: zerolog.Nop()})
	require.NoError(t, err)
	return keys
}

// join registers an agent that serves chat; its id is a letter.
func (r *rig) join(id, region string, slots uint32, models ...string) *agentregtest.Agent {
	return agentregtest.Join(r.ctx, r.o.Registry, id, region, slots, models, []string{"chat"})
}

// pass lets d go by, with everything that it causes.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
