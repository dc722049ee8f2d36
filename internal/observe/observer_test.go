// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"bytes"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/audit"
)

func TestTheLogHasALineForEachHoldThatExpires(t *testing.T) {
	t.Parallel()
	none, err := audit.Open("", audit.Options{})
	require.NoError(t, err)
	var out bytes.Buffer
	o := Observer{Metrics: newMetrics(Options{}), Audit: none, Log: zerolog.New(&out)}
	for _, outcome := range []holdstate.Outcome{holdstate.OutcomeReleased, holdstate.OutcomeExpired, holdstate.Pending} {
		o.Ended(&extproc.Record{
			Request: extproc.Request{ID: "r-1", Model: "m", Method: "POST"}, Outcome: outcome, Held: 1500 * time.Millisecond,
		})
	}
	require.JSONEq(t, `{"level":"info","model":"m","request_id":"r-1","after":"1.5s","message":"hold expired"}`, out.String())
}
