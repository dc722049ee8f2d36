// SPDX-License-Identifier: Apache-2.0

package app

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/admin"
	"github.com/holdgate/holdgate/internal/polltest"
	"github.com/holdgate/holdgate/internal/shared/valkeytest"
	"github.com/holdgate/holdgate/internal/target"
)

// sharing returns a router that shares its state, with rigMap. Nothing but its client runs.
func sharing(t *testing.T, server *valkeytest.Server, flags ...string) *App {
	t.Helper()
	a := newApp(t, append([]string{"--shared=" + server.URL()}, flags...)...)
	_, err := a.maps.Push([]byte(rigMap), false)
	require.NoError(t, err)
	done := make(chan struct{})
	ctx := t.Context()
	go func() {
		defer close(done)
		a.shared.Run(ctx)
	}()
	t.Cleanup(func() {
		<-done
		require.NoError(t, a.audit.Close())
	})
	a.shared.AwaitUp(ctx)
	return a
}

// held decides on a request for a model.
func held(t *testing.T, a *App, model string) extproc.Decision {
	t.Helper()
	return calls(t, a, "").Decide(&extproc.Request{Method: http.MethodPost, Endpoint: &extproc.Endpoint{Kind: target.Chat}, Model: model, Patience: -1})
}

func TestAHoldLimitIsForAllRoutersOfASite(t *testing.T) {
	t.Parallel()
	server := valkeytest.Start(t)
	one, two := sharing(t, server, "--wake-hold-max=1"), sharing(t, server, "--wake-hold-max=1")
	first := held(t, one, "m")
	require.True(t, first.Held)
	// On a slow machine an answer may be late, so that the router decides alone.
	polltest.Until(t, "the other router holds no more", func() bool {
		d := held(t, two, "m")
		if d.Held {
			d.Waiter.Report(holdstate.Leave)
		}
		return d.Refusal != nil && d.Refusal.Code == "model_waking"
	})
	polltest.Until(t, "explain says so", func() bool {
		e, err := two.decider.Explain(admin.ExplainQuery{Model: "m", Kind: target.Chat})
		require.NoError(t, err)
		return e.Decision == admin.DecisionRefuse && e.Code == "model_waking"
	})
	require.True(t, held(t, two, "half").Held, "the limit is per model")
	first.Waiter.Report(holdstate.Leave)
	polltest.Until(t, "the other router may hold one", func() bool { return held(t, two, "m").Held })
}
