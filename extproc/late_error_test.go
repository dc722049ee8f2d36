// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdgate/holdgate/extproc/extproctest"
)

func automatic(o *Options) { o.LateError = LateErrorAuto }

// In auto mode an answer is cut where an SDK would return the error as a success,
// and nowhere else.
func TestAutoModeCutsWhereAnSDKWouldReturnTheError(t *testing.T) {
	t.Parallel()
	const (
		waking = `{"error":{"code":"model_waking","message":"model m is waking up; retry in 30 seconds","source":"router","retry_after":30}}`
		soon   = `{"error":{"code":"model_waking","message":"model m is waking up; retry in 1 second","source":"router","retry_after":1}}`
	)
	for name, c := range map[string]struct {
		stream, impatient bool
		headers           []string
		want              string
		cut               bool
	}{
		"a stream":                       {true, false, nil, "data: " + waking + "\n\n", false},
		"an SDK's stream":                {true, false, []string{"x-stainless-lang", "python"}, "data: " + waking + "\n\n", false},
		"plain":                          {false, false, nil, waking, false},
		"an SDK's plain request":         {false, false, []string{"x-stainless-lang", "js"}, waking, true},
		"an SDK's own clock":             {false, true, []string{"x-stainless-timeout", "101", "x-stainless-lang", "js"}, soon, true},
		"an SDK that says only its time": {false, true, []string{"x-stainless-timeout", "101"}, soon, true},
		"another client's own clock":     {false, true, []string{"x-wake-timeout", "100s"}, soon, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				t := r.t
				r.holding(100 * time.Second)
				decide := r.decide
				r.decide = func(q *Request) Decision {
					d := decide(q)
					d.Impatient = c.impatient
					return d
				}
				x := r.ask(t, extproctest.Request(chatPath, fmt.Sprintf(`{"model":"m","stream":%t}`, c.stream), c.headers...))
				err := x.End()
				got := x.Events()
				last := fmt.Sprintf("1m40s %q", c.want)
				if c.cut {
					require.Equal(t, codes.Aborted, status.Code(err))
				} else {
					require.ErrorIs(t, err, io.EOF)
					last += " end"
				}
				require.Equal(t, last, got[len(got)-1])
			}, automatic)
		})
	}
}

// An engine's error behind keepalives is passed on whole, and then cut for an SDK.
func TestAnEnginesLateErrorInAutoMode(t *testing.T) {
	t.Parallel()
	for sdk, ending := range map[bool]string{true: `20s ""`, false: `20s "" end`} {
		for _, code := range []int{400, 307} {
			bubble(t, func(r *rig) {
				t := r.t
				var headers []string
				if sdk {
					headers = []string{"x-stainless-lang", "python"}
				}
				x := r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`, headers...))
				elapse(20 * time.Second)
				r.slots.up(engineA, 1)
				body := r.engine.call(t, 1).respond(code)
				go func() {
					_, _ = io.WriteString(body, `{"error":"no"}`)
					_ = body.Close()
				}()
				err := x.End()
				require.Equal(t, sdk, status.Code(err) == codes.Aborted, err)
				require.Equal(t, []string{"15s head 200", "15s " + space, `20s "{\"error\":\"no\"}"`, ending}, x.Events())
			}, automatic)
		}
	}
}
