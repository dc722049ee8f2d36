// SPDX-License-Identifier: Apache-2.0

package refusal

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
	"fmt"
	"io"
	"strings"
)

// engineError has the fields of an engine's error other than its message.
type engineError struct {
	text        []byte         // all of it; nil if it is no JSON object
	kind        string         // its type
	code, param jsontext.Value // nil: it has none
}

// engineErrorBytes is how much of an engine's error body is read.
const engineErrorBytes = 64 << 10

// FromEngine returns the refusal for an engine's error, with the fields of its body.
func FromEngine(status int, body io.Reader) *Refusal {
	r := engineFailed(facts{detail: fmt.Sprintf("the engine answered with status %d", status)})
	r.Status, r.engine = status, &engineError{}
	text, err := io.ReadAll(io.LimitReader(body, engineErrorBytes))
	if err == nil {
		r.read(text)
	}
	return r
}

// EngineText returns an engine's error as the engine wrote it, nil if that is no JSON object.
func (r *Refusal) EngineText() []byte {
	if r.engine == nil {
		return nil
	}
	return r.engine.text
}

// read copies the fields of an engine's error body. Engines put them into "error",
// which some make a string, or at the top level.
func (r *Refusal) read(text []byte) {
	var body map[string]jsontext.Value
	lax := json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if json.Unmarshal(text, &body, lax) != nil {
		return
	}
	r.engine.text = text
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

// stringOf returns the text of a JSON string, empty for any other value.
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
