// SPDX-License-Identifier: Apache-2.0

package refusal

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
	"fmt"
	"io"
	"strings"
)

// engineError is what an engine's own error says beside its message.
type engineError struct {
	kind        string         // its type
	code, param jsontext.Value // nil: it has none
}

// engineErrorBytes is how much of an engine's error is read for its message.
const engineErrorBytes = 64 << 10

// FromEngine returns the refusal for an engine's error, with what its body says.
func FromEngine(status int, body io.Reader) *Refusal {
	r := engineFailed(facts{detail: fmt.Sprintf("the engine answered with status %d", status)})
	r.Status, r.engine = status, &engineError{}
	text, err := io.ReadAll(io.LimitReader(body, engineErrorBytes))
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

// stringOf returns a JSON string's text, empty for anything else.
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
