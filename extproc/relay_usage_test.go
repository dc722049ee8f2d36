// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"io"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/body"
	"github.com/holdgate/holdgate/extproc/extproctest"
)

// relayedRecord has an engine's answer relayed, after a keepalive or before the first one, and
// returns the record. The answer comes in pieces, a second after one another.
func relayedRecord(r *rig, stream, kept bool, respond func(c *call) *io.PipeWriter, pieces ...string) *Record {
	t := r.t
	text := `{"model":"m"}`
	if stream {
		text = `{"model":"m","stream":true}`
	}
	x := r.ask(t, extproctest.Request(chatPath, text))
	if kept {
		elapse(interval)
	}
	elapse(2 * time.Second)
	r.slots.up(engineA, 1)
	w := respond(r.engine.call(t, 1))
	for _, p := range pieces {
		elapse(time.Second)
		_, err := io.WriteString(w, p)
		require.NoError(t, err)
	}
	_ = w.Close()
	require.ErrorIs(t, x.End(), io.EOF)
	elapse(logWait)
	return r.only(t)
}

const (
	chatAnswer = `{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":5,"completion_tokens":7}}`
	chatEvents = "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":7}}\n\ndata: [DONE]\n\n"
)

// The record of a relayed answer has the tokens that its engine reports, and when the first came.
func TestTheTokensOfARelayedAnswer(t *testing.T) {
	t.Parallel()
	known := body.Usage{Input: 5, Output: 7, Known: true}
	const isJSON, isEvents = "application/json; charset=utf-8", "Text/Event-Stream"
	tests := map[string]struct {
		stream, kept bool
		status       int
		kind         string
		pieces       []string
		want         body.Usage
	}{
		"JSON":                             {false, false, 200, isJSON, []string{chatAnswer[:70], chatAnswer[70:]}, known},
		"JSON after a keepalive":           {false, true, 200, isJSON, []string{chatAnswer}, known},
		"events":                           {true, false, 200, isEvents, []string{chatEvents[:90], chatEvents[90:]}, known},
		"events after a keepalive":         {true, true, 200, isEvents, []string{chatEvents}, known},
		"events, type not said":            {true, true, 200, "", []string{chatEvents}, known},
		"JSON in answer to a stream":       {true, false, 200, isJSON, []string{chatAnswer}, known},
		"an error":                         {false, false, 400, isJSON, []string{chatAnswer}, body.Usage{}},
		"an error after a keepalive":       {false, true, 400, isJSON, []string{chatAnswer}, body.Usage{}},
		"an error of a stream, kept alive": {true, true, 400, isJSON, []string{chatAnswer}, body.Usage{}},
		"another type":                     {false, false, 200, "text/plain", []string{chatAnswer}, body.Usage{}},
		"no body":                          {false, false, 200, isJSON, nil, body.Usage{}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				rec := relayedRecord(r, tt.stream, tt.kept, func(c *call) *io.PipeWriter {
					return c.respond(tt.status, "Content-Type", tt.kind)
				}, tt.pieces...)
				require.Equal(r.t, tt.want, rec.Usage)
				var first time.Duration
				if tt.stream && tt.status == 200 {
					if first = 3 * time.Second; tt.kept {
						first += interval
					}
				}
				require.Equal(r.t, first, rec.FirstToken)
			})
		})
	}
}

// An answer that the router decodes is read; one that it passes on compressed is not.
func TestTheTokensOfACompressedAnswer(t *testing.T) {
	t.Parallel()
	for name, c := range compressors {
		for kept, want := range map[bool]body.Usage{true: {Input: 5, Output: 7, Known: true}, false: {}} {
			if c.coding == "identity" {
				continue
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				bubble(t, func(r *rig) {
					rec := relayedRecord(r, false, kept, func(call *call) *io.PipeWriter {
						w := call.respond(200, "Content-Type", "application/json", "Content-Encoding", c.coding)
						z := c.begin(w)
						_, _ = io.WriteString(z, chatAnswer)
						_ = z.Close()
						return w
					})
					require.Equal(r.t, want, rec.Usage)
				})
			})
		}
	}
}

// Of a client that leaves, what the engine had reported until then counts.
func TestTheTokensOfAnAnswerThatIsCut(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		x := r.ask(t, extproctest.Request("/v1/messages", `{"model":"m","stream":true}`))
		r.slots.up(engineA, 1)
		w := r.engine.call(t, 1).respond(200, "Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":25,\"output_tokens\":1}}}\n\n")
		elapse(time.Second)
		x.Reset()
		elapse(logWait)
		rec := r.only(t)
		require.Equal(t, StatusClientGone, rec.Status)
		require.Equal(t, body.Usage{Input: 25, Output: 1, Known: true}, rec.Usage)
	})
}

// The router does not see an answer that Envoy carries.
func TestTheTokensOfACarriedAnswerAreNotKnown(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		record, end := r.logStream(r.t, envoy.LogEdge)
		defer end()
		r.slots.up(engineA, 1)
		id := uuid.NewString()
		x := r.ask(r.t, extproctest.Request(chatPath, `{"model":"m"}`, headerRequestID, id))
		x.Reset()
		record(id, envoy.ModeNative)
		require.Equal(r.t, body.Usage{}, r.only(r.t).Usage)
	})
}
