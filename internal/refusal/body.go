// SPDX-License-Identifier: Apache-2.0

package refusal

import (
	"cmp"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"fmt"
	"net/http"
)

// API is the protocol family of an endpoint. It decides the form of errors and keepalives.
type API uint8

// The protocol families.
const (
	OpenAI API = iota
	Anthropic
	Responses
)

// errorObject is the object that every error body carries.
type errorObject struct {
	Type       string         `json:"type,omitzero"`
	Code       any            `json:"code"` // a string; an engine's may be a number
	Message    string         `json:"message"`
	Param      jsontext.Value `json:"param,omitzero"`
	Source     string         `json:"source"`
	RetryAfter int            `json:"retry_after,omitzero"`
}

// envelope is an error body. Type is set for Anthropic only.
type envelope struct {
	Redirect *redirect   `json:"redirect,omitzero"`
	Type     string      `json:"type,omitzero"`
	Error    errorObject `json:"error"`
}

type redirect struct {
	Site string `json:"site"`
}

// object returns the error object, which is the same in every body and event.
func (r *Refusal) object() errorObject {
	o := errorObject{Code: r.Code, Message: r.Message, Source: "router", RetryAfter: r.RetryAfter}
	if e := r.engine; e != nil {
		o.Source, o.Type, o.Param = "engine", e.kind, e.param
		if e.code != nil {
			o.Code = e.code
		}
	}
	return o
}

// envelope returns the error in the form of an API.
func (r *Refusal) envelope(api API) envelope {
	e := envelope{Error: r.object()}
	if r.site != "" {
		e.Redirect = &redirect{Site: r.site}
	}
	if api == Anthropic {
		e.Type, e.Error.Type = "error", cmp.Or(e.Error.Type, anthropicType(r.Status))
	}
	return e
}

// Body returns the JSON error in the form of an API.
func (r *Refusal) Body(api API) []byte { return marshal(r.envelope(api)) }

func marshal(v any) []byte {
	// The name of a model in a path may be invalid UTF-8.
	b, err := json.Marshal(v, jsontext.AllowInvalidUTF8(true))
	if err != nil {
		return []byte(`{"error":{"code":"internal_error","message":"the error could not be written","source":"router"}}`)
	}
	return b
}

func anthropicType(status int) string {
	switch status {
	case http.StatusBadRequest:
		return "invalid_request_error"
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return "overloaded_error"
	default:
		return "api_error"
	}
}

// Event returns the error as the last events of a stream that has begun.
func (r *Refusal) Event(api API) []byte {
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

// event returns one server-sent event; an empty name omits the event field.
func event(name string, v any) []byte {
	if name != "" {
		name = "event: " + name + "\n"
	}
	return append(append([]byte(name+"data: "), marshal(v)...), "\n\n"...)
}

// codeText returns an error's code as text: the code of an engine may be a number.
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

// responsesFailed is the last event of a failed stream of the Responses API.
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

// responsesEvents returns both events: openai-python and the AI SDK read the first one,
// Codex the second.
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
