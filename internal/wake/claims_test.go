// SPDX-License-Identifier: Apache-2.0

package wake

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// memoryClaims are the claims of several routers, in memory.
type memoryClaims struct {
	mu    sync.Mutex
	owner *routerClaims
	key   string
	until time.Time
	end   CallEnd
	away  bool
}

func (m *memoryClaims) setAway(away bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.away = away
}

// routerClaims are the claims of one router.
type routerClaims struct{ *memoryClaims }

var errAway = errors.New("away")

func (r *routerClaims) Claim(_ context.Context, _, key string, d time.Duration) (Claim, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	left := time.Until(r.until)
	switch {
	case r.away:
		return Claim{}, errAway
	case left > 0 && (r.owner != r || r.end.Done):
		return Claim{Ends: left, End: r.end}, nil
	}
	if r.owner == nil || r.end.Done {
		r.key = key
	}
	r.owner, r.until, r.end = r, time.Now().Add(d), CallEnd{}
	return Claim{Mine: true, Key: r.key}, nil
}

func (r *routerClaims) End(_ context.Context, _ string, e CallEnd) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.owner == r && !r.away {
		r.end, r.until = e, time.Now().Add(e.Lasts)
	}
}

func (r *routerClaims) Release(context.Context, string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.owner == r && !r.end.Done {
		r.until = time.Time{}
	}
}

// claimingRigs returns the hooks of n routers that share claims and one platform.
func claimingRigs(t *testing.T, n int, script ...func() (*http.Response, error)) ([]*hookRig, *memoryClaims) {
	t.Helper()
	claims := &memoryClaims{}
	rigs := make([]*hookRig, n)
	for i := range rigs {
		rigs[i] = newHookRig(t, script...)
		rigs[i].o.Claims = &routerClaims{claims}
		rigs[i].hook = rigs[0].hook
		rigs[i].client.Transport = rigs[0].hook
	}
	return rigs, claims
}

func allWant(rigs []*hookRig) {
	for _, r := range rigs {
		r.Wanted("llama", true, false)
	}
}

func TestOneRouterCallsAHookPerCooldown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rigs, _ := claimingRigs(t, 3)
		allWant(rigs)
		time.Sleep(4*time.Minute + 30*time.Second)
		got := rigs[0].seen()
		require.Len(t, got, 5)
		for i, c := range got {
			require.InDelta(t, float64(time.Duration(i)*DefaultCooldown), float64(c.at), float64(time.Second))
		}
	})
}

// The one that called first calls again, after its backoff and with its key.
func TestTheRouterWhoseCallFailedTriesAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rigs, _ := claimingRigs(t, 3, answer(503), answer(503), answer(503))
		allWant(rigs)
		time.Sleep(20 * time.Second)
		got := rigs[0].seen()
		require.Len(t, got, 4)
		for _, c := range got {
			require.Equal(t, got[0].head.Get("Idempotency-Key"), c.head.Get("Idempotency-Key"))
		}
		total := 0.0
		for _, r := range rigs {
			n := r.counted("unavailable")
			require.Contains(t, []float64{0, 3}, n, "one router made all calls")
			total += n
		}
		require.InDelta(t, 3, total, 0)
	})
}

// The router whose call failed needs the model no more, or stops: another one calls at once.
func TestARouterGivesUpTheClaimOfAFailedCall(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(r *hookRig){
		"the need ends":    func(r *hookRig) { r.Wanted("llama", false, false) },
		"the router stops": func(r *hookRig) { r.Stop(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rigs, _ := claimingRigs(t, 2, answer(503, "Retry-After", "40"))
				rigs[0].Wanted("llama", true, false)
				require.Len(t, rigs[0].seen(), 1)
				rigs[1].Wanted("llama", true, false)
				time.Sleep(3 * time.Second)
				require.Len(t, rigs[0].seen(), 1)
				end(rigs[0])
				time.Sleep(claimLook)
				got := rigs[0].seen()
				require.Len(t, got, 2)
				require.Equal(t, got[0].head.Get("Idempotency-Key"), got[1].head.Get("Idempotency-Key"))
			})
		})
	}
}

// A router dies during its call: its claim ends, and another router calls with its key.
func TestARouterTakesOverTheCallOfOneThatDied(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rigs, claims := claimingRigs(t, 2)
		dead := &routerClaims{claims}
		claim, err := dead.Claim(t.Context(), "", "key of the dead", claimTime)
		require.NoError(t, err)
		require.True(t, claim.Mine)
		allWant(rigs)
		time.Sleep(claimTime - time.Millisecond)
		require.Empty(t, rigs[0].seen())
		time.Sleep(claimLook)
		got := rigs[0].seen()
		require.Len(t, got, 1)
		require.Equal(t, "key of the dead", got[0].head.Get("Idempotency-Key"))
	})
}

func TestARefusalIsKnownToTheOtherRouters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rigs, _ := claimingRigs(t, 2, answer(404))
		rigs[0].Wanted("llama", true, false)
		require.Len(t, rigs[0].seen(), 1)
		rigs[1].Wanted("llama", true, false)
		want := []string{"llama: its wake hook answered 404"}
		require.Equal(t, want, rigs[0].failed())
		require.Equal(t, want, rigs[1].failed())
		require.True(t, rigs[1].Refused("llama"))
		require.Len(t, rigs[0].seen(), 1)
		time.Sleep(DefaultCooldown + time.Second)
		require.Len(t, rigs[0].seen(), 2)
		require.False(t, rigs[0].Refused("llama") && rigs[1].Refused("llama"))
	})
}

func TestEachRouterCallsAHookOnceWithoutClaims(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rigs, claims := claimingRigs(t, 3)
		claims.setAway(true)
		allWant(rigs)
		time.Sleep(DefaultCooldown / 2)
		require.Len(t, rigs[0].seen(), 3)
		claims.setAway(false)
		time.Sleep(DefaultCooldown)
		require.Len(t, rigs[0].seen(), 4, "one call for all again")
	})
}
