// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/extproc/wire"
	"github.com/holdgate/holdgate/holdstate"
)

var lastEvents = map[string]struct {
	text  string
	whole bool
}{
	"chat":                         {"data: {\"choices\":[]}\n\ndata: [DONE]\n\n", true},
	"with CR":                      {"data: {}\r\n\r\ndata: [DONE]\r\n\r\n", true},
	"without a blank":              {"data:[DONE]\n\n", true},
	"messages":                     {"event: ping\ndata: {}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n", true},
	"messages without event names": {"data: {\"type\":\"message_stop\"}\n\n", true},
	"responses":                    {"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{" + strings.Repeat("x", 70000) + "}}\n\n", true},
	"a failed response":            {"event: response.failed\ndata: {}\n\n", true},
	"cut in its last event":        {"event: response.completed\ndata: {\"type\":\"response.completed\"", false},
	"its last line is cut":         {"data: [DONE]", false},
	"no last event":                {"data: {\"choices\":[]}\n\n: keep-alive\n\n", false},
	"a model that says it":         {"data: {\"content\":\"data: [DONE]\\n\\n\"}\n\n", false},
	"nothing":                      {"", false},
}

func TestTheLastEventIsSeenHoweverItIsCut(t *testing.T) {
	t.Parallel()
	for name, c := range lastEvents {
		for _, size := range []int{1, 2, 3, 7, 1 << 20} {
			var e lastEvent
			for rest := []byte(c.text); len(rest) > 0; {
				n := min(size, len(rest))
				e.add(rest[:n])
				rest = rest[n:]
			}
			require.Equal(t, c.whole, e.passed, "%s in pieces of %d", name, size)
		}
	}
}

// A client that has the last event has the whole answer, whenever it hangs up.
func TestAClientThatHangsUpAfterTheLastEventHasItsAnswer(t *testing.T) {
	t.Parallel()
	for name, c := range lastEvents {
		bubble(t, func(r *rig) {
			t := r.t
			x := r.ask(t, chat(true))
			r.slots.up(engineA, 1)
			body := r.engine.call(t, 1).respond(200, "Content-Type", "text/event-stream")
			_, _ = io.WriteString(body, c.text)
			elapse(time.Millisecond)
			x.Reset()
			elapse(logWait + time.Second)
			rec := r.only(t)
			if c.whole {
				require.Equal(t, 200, rec.Status, name)
			} else {
				require.Equal(t, StatusClientGone, rec.Status, name)
			}
			require.Equal(t, holdstate.OutcomeReleased, rec.Outcome)
		})
	}
}

// Envoy's record says whether the engine had ended its answer.
func TestANativeAnswerThatWasWholeIsNoneThatTheClientLeft(t *testing.T) {
	t.Parallel()
	for whole, want := range map[bool]int{true: 200, false: StatusClientGone} {
		var rec Record
		rec.logged(&wire.LogEntry{Status: 200, Left: true, EngineEnded: whole})
		require.Equal(t, want, rec.Status)
	}
}
