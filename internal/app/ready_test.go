// SPDX-License-Identifier: Apache-2.0

package app

import (
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestARouterWithoutAMapIsReadyWhenItHasWaitedForOne(t *testing.T) {
	t.Parallel()
	const map1 = `{"placements":[{"model":"m","kind":"chat","site":"here","scale_from_zero":true}]}`
	synctest.Test(t, func(t *testing.T) {
		a := newApp(t)
		ready := func() string {
			w := httptest.NewRecorder()
			a.admin.Handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "http://127.0.0.1/readyz", nil))
			return w.Body.String()
		}
		const reason = `no sibling map was pushed or restored yet: push one with holdgate map push -f FILE`
		time.Sleep(30*time.Second - 1)
		require.JSONEq(t, `{"status":"not ready","reason":"`+reason+`"}`, ready())
		require.Empty(t, a.status().Warning)
		time.Sleep(time.Nanosecond)
		require.JSONEq(t, `{"status":"ready","warning":"`+reason+`"}`, ready())
		require.True(t, a.status().Ready)
		require.Equal(t, reason, a.status().Warning)
		_, err := a.maps.Push([]byte(map1), false)
		require.NoError(t, err)
		require.JSONEq(t, `{"status":"ready"}`, ready())
		a.draining.Store(true)
		require.JSONEq(t, `{"status":"not ready","reason":"the router is shutting down"}`, ready())
	})
}

func TestTheWaitForAMapCanBeChanged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		require.Empty(t, newApp(t, "--map-wait=0").notReady())
		a := newApp(t, "--map-wait=1h")
		time.Sleep(time.Hour - 1)
		require.NotEmpty(t, a.notReady())
		require.Empty(t, newApp(t, "--site-id=").notReady(), "nothing to wait for")
	})
}
