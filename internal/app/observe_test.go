// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/holdstate"
)

func TestTheLogHasALineForEachHoldThatExpires(t *testing.T) {
	t.Parallel()
	a := newApp(t)
	var out bytes.Buffer
	o := observer{metrics: a.series, audit: a.audit, log: zerolog.New(&out)}
	for _, outcome := range []holdstate.Outcome{holdstate.OutcomeReleased, holdstate.OutcomeExpired, holdstate.Pending} {
		o.Ended(&extproc.Record{
			Request: extproc.Request{ID: "r-1", Model: "m", Method: "POST"}, Outcome: outcome, Held: 1500 * time.Millisecond,
		})
	}
	require.JSONEq(t, `{"level":"info","model":"m","request_id":"r-1","after":"1.5s","message":"hold expired"}`, out.String())
}
