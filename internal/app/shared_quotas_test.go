// SPDX-License-Identifier: Apache-2.0

package app

import (
	"crypto/sha256"
	"encoding/json/v2"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/polltest"
	"github.com/holdgate/holdgate/internal/shared/valkeytest"
)

func TestTheRoutersOfASiteCountOneQuota(t *testing.T) {
	t.Parallel()
	server := valkeytest.Start(t)
	file := temporary(t, fmt.Sprintf("keys: [{id: k, tenant: t, key_hash: %x, quota: {requests_per_minute: 6}}]", sha256.Sum256([]byte("secret"))))
	routers := []*App{sharing(t, server, "--auth-file", file), sharing(t, server, "--auth-file", file)}
	polltest.Until(t, "what one router charges is charged to the other", func() bool {
		_ = routers[0].keys.Current().ByID("k").Charge("m", 1, time.Now())
		return !routers[1].keys.Current().ByID("k").Peek("m", 1, time.Now()).OK
	})
}

// The hook is told the demand of the site, and is called by one of the routers.
func TestOneRouterOfASiteCallsAWebhook(t *testing.T) {
	t.Parallel()
	type notice struct {
		Model  string `json:"model"`
		Demand int    `json:"demand"`
	}
	notices := make(chan notice, 1000)
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var n notice
		if err := json.UnmarshalRead(r.Body, &n); err != nil {
			t.Error(err)
		}
		notices <- n
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	t.Cleanup(hook.Close)
	server := valkeytest.Start(t)
	one, two := startShared(t, server), startShared(t, server)
	for _, a := range []*App{one, two} {
		_, err := a.maps.Push(fmt.Appendf(nil, `{"generation":1,"sites":[],"placements":[{"model":"m","kind":"chat","site":"here",
			"scale_from_zero":true,"wake":{"url":%q}}]}`, hook.URL), false)
		require.NoError(t, err)
	}
	waits(t, one, uuid.NewString())
	require.Equal(t, notice{"m", 1}, <-notices)
	waits(t, two, uuid.NewString())
	polltest.Until(t, "the hook is told the demand of both", func() bool { return <-notices == notice{"m", 2} })
	callers := 0
	for _, a := range []*App{one, two} {
		if (&rig{App: a, t: t}).count("hivenet_webhook_calls_total", "unavailable") > 0 {
			callers++
		}
	}
	require.Equal(t, 1, callers)
}
