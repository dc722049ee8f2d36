// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
	"fmt"
	"io"
	"net/http"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// LateError is how an answer ends that failed after it had begun.
type LateError string

// The forms of late errors. In each of them the error itself is sent first.
const (
	// LateErrorAuto cuts the answer where an SDK would return it as a success: if
	// the caller is one, and does not stream.
	LateErrorAuto LateError = "auto"
	// LateErrorBody ends every answer cleanly.
	LateErrorBody LateError = "body"
	// LateErrorAbort cuts every answer.
	LateErrorAbort LateError = "abort"
)

// cuts reports whether an answer that failed is cut behind the error.
func (h *hold) cuts() bool {
	switch h.st.s.o.LateError {
	case LateErrorAbort:
		return true
	case LateErrorBody:
		return false
	default:
		return !h.st.req.Stream && h.st.head.sdk
	}
}

// late writes an error into an answer that has begun with status 200.
func (h *hold) late(r *Refusal) error {
	h.st.noteRefusal(r)
	api := h.st.req.Endpoint.API
	text := r.body(api)
	if h.st.req.Stream {
		text = append([]byte(h.separator()), r.event(api)...)
	}
	cut := h.cuts()
	h.st.send(streamBody(text, !cut))
	if cut {
		return abort(r.Code)
	}
	return nil
}

// abort cuts an answer that has begun: HTTP/1.1 clients see a broken chunked body,
// HTTP/2 clients a reset.
func abort(code string) error { return status.Error(codes.Aborted, code) }

// event is the error at the end of a stream that has begun.
func (r *Refusal) event(api API) []byte {
	e := r.envelope(api)
	switch api {
	case Anthropic:
		e.Error.Message = codeText(e.Error.Code) + ": " + r.Message
		return event("error", e)
	case Responses:
		return r.responsesEvents(e.Error)
	default:
		return event("", e)
	}
}

// event is one server-sent event; without a name it is a message.
func event(name string, v any) []byte {
	if name != "" {
		name = "event: " + name + "\n"
	}
	return append(append([]byte(name+"data: "), marshal(v)...), "\n\n"...)
}

// codeText is an error's code as text: an engine's own may be a number.
func codeText(code any) string {
	raw, ok := code.(jsontext.Value)
	if !ok {
		return fmt.Sprint(code)
	}
	if text, err := jsontext.AppendUnquote(nil, raw); err == nil {
		return string(text)
	}
	return raw.String()
}

// responsesError is the error event of the Responses API.
type responsesError struct {
	Type     string         `json:"type"`
	Sequence int            `json:"sequence_number"`
	Code     string         `json:"code"`
	Message  string         `json:"message"`
	Param    jsontext.Value `json:"param"`
	Error    errorObject    `json:"error"`
}

// responsesFailed is the event with which a failed stream of the Responses API ends.
type responsesFailed struct {
	Type     string `json:"type"`
	Sequence int    `json:"sequence_number"`
	Response struct {
		Object string `json:"object"`
		Status string `json:"status"`
		Error  struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	} `json:"response"`
}

// responsesEvents are both: openai-python and the AI SDK read the first one, Codex
// the second.
func (r *Refusal) responsesEvents(o errorObject) []byte {
	first := responsesError{
		Type: "error", Code: codeText(o.Code), Message: r.Message, Param: jsontext.Value("null"), Error: o,
	}
	if o.Param != nil {
		first.Param = o.Param
	}
	second := responsesFailed{Type: "response.failed", Sequence: 1}
	second.Response.Object, second.Response.Status = "response", "failed"
	second.Response.Error.Code, second.Response.Error.Message = first.Code, r.Message
	return append(event(first.Type, first), event(second.Type, second)...)
}

// engineError reports an engine's error in a stream that has begun. The text of the
// error may be slow.
func (h *hold) engineError(resp *http.Response) error {
	refusals := make(chan *Refusal, 1)
	go func() { refusals <- engineRefusal(resp) }()
	for {
		select {
		case r := <-refusals:
			return h.late(r)
		case <-h.tick:
			if !h.keepalive() {
				h.st.left()
				return nil
			}
		case <-h.st.gone:
			h.st.left()
			return nil
		}
	}
}

// engineError is what an engine's own error says beside its message.
type engineError struct {
	kind        string         // its type
	code, param jsontext.Value // nil: it has none
}

// engineErrorBytes is how much of an engine's error is read for its message.
const engineErrorBytes = 64 << 10

// engineRefusal is an engine's error, with what the engine says of it.
func engineRefusal(resp *http.Response) *Refusal {
	r := &Refusal{
		Status: resp.StatusCode, Code: "backend_error",
		Message: fmt.Sprintf("the engine answered with status %d", resp.StatusCode),
		engine:  &engineError{},
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, engineErrorBytes))
	if err == nil {
		r.read(text)
	}
	return r
}

// read takes over what an engine's error body says. Engines put the error's fields
// into "error", which some make a string, or beside each other at the top.
func (r *Refusal) read(text []byte) {
	var body map[string]jsontext.Value
	lax := json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if json.Unmarshal(text, &body, lax) != nil {
		return
	}
	message := stringOf(body["error"])
	if inner := body["error"]; inner.Kind() == '{' {
		clear(body)
		if json.Unmarshal(inner, &body, lax) != nil {
			return
		}
	}
	if message == "" {
		message = stringOf(body["message"])
	}
	if strings.TrimSpace(message) == "" {
		return
	}
	r.Message = message
	r.engine.kind = stringOf(body["type"])
	if code := body["code"]; code.Kind() == '0' || stringOf(code) != "" {
		r.engine.code = code
	}
	r.engine.param = body["param"]
}

// stringOf is a JSON string's text, empty for anything else.
func stringOf(v jsontext.Value) string {
	if v.Kind() != '"' {
		return ""
	}
	text, err := jsontext.AppendUnquote(nil, v)
	if err != nil {
		return ""
	}
	return string(text)
}
