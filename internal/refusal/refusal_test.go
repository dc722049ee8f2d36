// SPDX-License-Identifier: Apache-2.0

package refusal

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/holdgate/holdgate/holdstate"
)

// refusals has every refusal, with the JSON that follows "code".
var refusals = map[string]struct {
	r          *Refusal
	status     int
	code       string
	message    string
	retryAfter string // as JSON, with its comma
	anthropic  string
}{
	"request_invalid":      {RequestInvalid("the body is %s", "odd"), 400, "request_invalid", "the body is odd", "", "invalid_request_error"},
	"not_found":            {NotFound(""), 404, "not_found", "this path is not an endpoint of the router", "", "not_found_error"},
	"not_found, but meant": {NotFound("/v1/models"), 404, "not_found", "this path is not an endpoint of the router: use /v1/models", "", "not_found_error"},
	"method_not_allowed":   {MethodNotAllowed("POST"), 405, "method_not_allowed", "this endpoint takes only POST", "", "api_error"},
	"no WebSocket":         {NoWebSocket(), 426, "request_invalid", "there is no WebSocket here: send the request with POST", "", "api_error"},
	"request_too_large":    {TooLarge(10485760), 413, "request_too_large", "the request body is larger than 10485760 bytes", "", "request_too_large"},
	"unsupported_encoding": {UnsupportedEncoding(), 415, "unsupported_encoding", "the request body has an unsupported content-encoding; use gzip, zstd, br or none", "", "api_error"},
	"model_not_found":      {ModelNotFound("m"), 404, "model_not_found", "model m does not exist here", "", "not_found_error"},
	"map_not_loaded":       {MapNotLoaded(), 503, "map_not_loaded", "the router has no sibling map yet; retry in 5 seconds", `,"retry_after":5`, "overloaded_error"},
	"registry_warming":     {RegistryWarming("m"), 503, "registry_warming", "model m may not be registered yet; retry in 2 seconds", `,"retry_after":2`, "overloaded_error"},
	"no_capacity":          {For(holdstate.ErrNoQueue, Wait{Model: "m"}), 503, "no_capacity", "all replicas of model m are busy; retry in 1 second", `,"retry_after":1`, "overloaded_error"},
	"request_timeout":      {For(holdstate.ErrTimeout, Wait{Model: "m"}), 504, "request_timeout", "no replica of model m had a free slot in time", "", "overloaded_error"},
	"backend_error":        {BackendError("m"), 502, "backend_error", "the engines of model m ended the connection before they answered", "", "api_error"},
	"draining":             {For(holdstate.ErrDraining, Wait{Model: "m"}), 503, "draining", "this router is shutting down; retry in 1 second", `,"retry_after":1`, "overloaded_error"},
	"rate_limited":         {RateLimited(2), 429, "rate_limit_exceeded", "this key has used up its quota; retry in 2 seconds", `,"retry_after":2`, "rate_limit_error"},
	"rate_limited, 1 s":    {RateLimited(1), 429, "rate_limit_exceeded", "this key has used up its quota; retry in 1 second", `,"retry_after":1`, "rate_limit_error"},
	"over_share":           {For(holdstate.ErrOverShare, Wait{Model: "m"}), 429, "rate_limit_exceeded", "this key has its share of model m in use; retry in 1 second", `,"retry_after":1`, "rate_limit_error"},
	"larger_than_share":    {For(holdstate.ErrOverShareAlways, Wait{Model: "m"}), 429, "rate_limit_exceeded", "the request is larger than this key's share of model m: make it shorter, or ask for less output", `,"retry_after":60`, "rate_limit_error"},
	"waking":               {For(holdstate.ErrExpired, Wait{Model: "m", Wakes: learned(17)}), 503, "model_waking", "model m is waking up; retry in 17 seconds", `,"retry_after":17`, "overloaded_error"},
	"waking, 1 s":          {For(holdstate.ErrExpired, Wait{Model: "m", Wakes: learned(1)}), 503, "model_waking", "model m is waking up; retry in 1 second", `,"retry_after":1`, "overloaded_error"},
	"wake failed, 1 s":     {For(&holdstate.FailedError{Reason: "no GPU"}, Wait{Model: "m", Wakes: learned(1)}), 503, "model_waking", "model m could not be woken: no GPU; retry in 1 second", `,"retry_after":1`, "overloaded_error"},
	"at capacity":          {For(holdstate.ErrGateFull, Wait{Model: "m", Held: true}), 503, "model_waking", "model m woke up but is still at capacity; retry in 30 seconds", `,"retry_after":30`, "overloaded_error"},
	"too many waiting":     {For(holdstate.ErrFull, Wait{Model: "m"}), 503, "model_waking", "model m is waking up and too many requests are already waiting for it; retry in 30 seconds", `,"retry_after":30`, "overloaded_error"},
	"wake failed":          {For(&holdstate.FailedError{Reason: "no GPU"}, Wait{Model: "m", Wakes: learned(60)}), 503, "model_waking", "model m could not be woken: no GPU; retry in 60 seconds", `,"retry_after":60`, "overloaded_error"},
}

// learned is a Wakes that returns this number of seconds for every model.
type learned int

func (l learned) RetryAfter(string) int { return int(l) }

func (l learned) Learned(string) (int, bool) { return int(l), true }

func TestRefusalsByteByByte(t *testing.T) {
	t.Parallel()
	for name, c := range refusals {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			object := `"code":"` + c.code + `","message":"` + c.message + `","source":"router"` + c.retryAfter + `}`
			late := `"code":"` + c.code + `","message":"` + c.code + ": " + c.message + `","source":"router"` + c.retryAfter + `}`
			require.Equal(t, c.status, c.r.Status)
			openAI := `{"error":{` + object + `}`
			anthropic := `{"type":"error","error":{"type":"` + c.anthropic + `",`
			require.Equal(t, openAI, string(c.r.Body(OpenAI)))
			require.Equal(t, openAI, string(c.r.Body(Responses)))
			require.Equal(t, anthropic+object+`}`, string(c.r.Body(Anthropic)))

			require.Equal(t, "data: "+openAI+"\n\n", string(c.r.Event(OpenAI)))
			require.Equal(t, "event: error\ndata: "+anthropic+late+"}\n\n", string(c.r.Event(Anthropic)))
			require.Equal(t, "event: error\ndata: "+`{"type":"error","sequence_number":0,"code":"`+c.code+`","message":"`+c.message+`","param":null,"error":{`+object+"}\n\n"+
				"event: response.failed\ndata: "+`{"type":"response.failed","sequence_number":1,"response":{"object":"response","status":"failed","error":{"code":"`+c.code+`","message":"`+c.message+`"}}}`+"\n\n",
				string(c.r.Event(Responses)))
		})
	}
}

// A model's name is chosen by whoever sends the request: nothing in it may end the JSON
// or the event.
func TestNamesCannotBreakAnError(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.OneOf(
			rapid.String(),
			rapid.StringMatching(`[\x00-\x20"\\{}:,/<>&\x7f-\x{a0}\x{2028}\x{2029}]{0,12}`),
			rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
		).Draw(t, "name")
		for _, r := range []*Refusal{
			ModelNotFound(name), BackendError(name), For(holdstate.ErrExpired, Wait{Model: name, Wakes: learned(30)}),
			For(&holdstate.FailedError{Reason: name}, Wait{Model: "m", Wakes: learned(30)}), For(holdstate.ErrNoQueue, Wait{Model: name}),
		} {
			for _, api := range []API{OpenAI, Anthropic, Responses} {
				requireError(t, r, r.Body(api))
				event := r.Event(api)
				data, ok := bytes.CutSuffix(event, []byte("\n\n"))
				require.True(t, ok)
				if api == Responses {
					data, _, ok = bytes.Cut(event, []byte("\n\nevent: response.failed\n"))
					require.True(t, ok)
				}
				if api != OpenAI {
					data, ok = bytes.CutPrefix(data, []byte("event: error\n"))
					require.True(t, ok)
				}
				data, ok = bytes.CutPrefix(data, []byte("data: "))
				require.True(t, ok)
				require.False(t, bytes.ContainsAny(data, "\r\n"), "one line")
				requireError(t, r, data)
			}
		}
	})
}

func requireError(t require.TestingT, r *Refusal, data []byte) {
	var got struct {
		Error struct{ Code, Message string }
	}
	require.NoError(t, json.Unmarshal(data, &got), "%q", data)
	require.Equal(t, r.Code, got.Error.Code)
	// A byte that is not valid UTF-8 becomes the replacement character.
	want := string([]rune(r.Message))
	require.True(t, strings.HasSuffix(got.Error.Message, want), "%q does not end %q", want, got.Error.Message)
}
