// SPDX-License-Identifier: Apache-2.0

package site

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/polltest"
	"github.com/holdgate/holdgate/internal/shared"
	"github.com/holdgate/holdgate/internal/shared/valkeytest"
)

// failing is a router that is told of failed wakes.
type failing struct {
	client *shared.Client
	fails  *Fails

	mu      sync.Mutex
	heard   []string
	until   []time.Time
	refuses int // how many calls are not taken
}

func newFailing(server *valkeytest.Server) *failing {
	r := &failing{}
	r.client = server.Router(func(c *shared.Client) {
		r.fails = NewFails(c, zerolog.Nop(), func(model, reason string, until time.Time) bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.refuses--
			if r.refuses < 0 {
				r.heard, r.until = append(r.heard, model+": "+reason), append(r.until, until)
			}
			return r.refuses < 0
		})
	})
	return r
}

func (r *failing) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.heard)
}

func (r *failing) awaitHeard(t *testing.T, want ...string) {
	t.Helper()
	polltest.Until(t, fmt.Sprintf("the router hears %q", want), func() bool { return len(r.all()) >= len(want) })
	require.Equal(t, want, r.all())
}

func TestAFailedWakeIsKnownToAll(t *testing.T) {
	t.Parallel()
	server := valkeytest.Start(t)
	one, two := newFailing(server), newFailing(server)
	begin := time.Now()
	one.fails.Failed("m", "no GPU", 4*time.Second)
	two.awaitHeard(t, "m: no GPU")
	require.WithinRange(t, two.until[0], begin.Add(2*time.Second), begin.Add(5*time.Second))

	late := newFailing(server)
	late.awaitHeard(t, "m: no GPU") // from before its start
	require.WithinRange(t, late.until[0], begin.Add(2*time.Second), begin.Add(5*time.Second))
	name := "a model\n of 3 words" + strings.Repeat("x", 100)
	two.fails.Failed(name, "no\n room \xff"+strings.Repeat("y", 2000), time.Second)
	one.awaitHeard(t, name+": no\n room "+strings.Repeat("y", maxReason-10))

	one.fails.Failed("n", "at once", 0)
	two.awaitHeard(t, "m: no GPU", "n: at once")
	for _, r := range []*failing{one, two, late} {
		polltest.Until(t, "they are forgotten", func() bool {
			r.fails.mu.Lock()
			defer r.fails.mu.Unlock()
			return len(r.fails.known) == 0
		})
	}
	after := newFailing(server)
	polltest.Until(t, "a beat", func() bool { return len(after.client.Routers()) == 4 })
	require.Empty(t, after.all(), "the cooldowns are over")
	require.Len(t, one.all(), 1, "no echo")
	require.Len(t, two.all(), 2, "each once")
}

func TestAFailedWakeThatIsNotTakenIsOfferedAgain(t *testing.T) {
	t.Parallel()
	server := valkeytest.Start(t)
	one, two := newFailing(server), newFailing(server)
	two.refuses = 2
	one.fails.Failed("m", "no GPU", 10*time.Second)
	two.awaitHeard(t, "m: no GPU")
	two.mu.Lock()
	defer two.mu.Unlock()
	require.Equal(t, -1, two.refuses, "not after it was taken")
}

func TestAWakeThatFailsWithoutTheServerIsToldLater(t *testing.T) {
	t.Parallel()
	server := valkeytest.Start(t)
	one, two := newFailing(server), newFailing(server)
	server.Stop()
	begin := time.Now()
	one.fails.Failed("m", "no GPU", time.Hour)
	require.Less(t, time.Since(begin), time.Second, "nobody waits for the server")
	polltest.Until(t, "the server is missed", func() bool { return !one.client.Up() && !two.client.Up() })
	server.Restart()
	two.awaitHeard(t, "m: no GPU")
}

func TestOnlyMessagesOfFailedWakesAreRead(t *testing.T) {
	t.Parallel()
	called := 0
	f := &Fails{known: map[string]time.Time{}, log: zerolog.Nop(), onFail: func(string, string, time.Time) bool { called++; return true }}
	for _, bad := range []string{"", "id", "id 5", "id 5 1", "id 5 2 m", "id x 1 mr", "id -1 1 mr", "id 5 -1 mr", " 5 1 mr", "id 99999999999 1 mr"} {
		f.receive(bad)
		require.Zero(t, called, "%q", bad)
	}
	f.receive("id 5 1 mr")
	f.receive("id 5 1 mr")
	require.Equal(t, 1, called)
}
