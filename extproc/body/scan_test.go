// SPDX-License-Identifier: Apache-2.0

package body

import (
	"bytes"
	"encoding/json/jsontext"
	"io"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/holdgate/holdgate/internal/target"
)

// isObject reports whether text is one JSON object in UTF-8, by another reader. A
// byte-order mark and halves of surrogate pairs are allowed.
func isObject(text []byte) bool {
	text = bytes.TrimPrefix(text, []byte(byteOrderMark))
	dec := jsontext.NewDecoder(bytes.NewReader(text), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if dec.PeekKind() != '{' || dec.SkipValue() != nil {
		return false
	}
	_, err := dec.ReadToken()
	return err == io.EOF && utf8.Valid(text) //nolint:errorlint // as io.Reader has it
}

// syntaxMessages are those of bodies that are no JSON object in UTF-8.
var syntaxMessages = []string{"not valid JSON near", "is not UTF-8", "data after", "must be a JSON object", "body is empty"}

// requireSyntax demands an error exactly when the syntax of text is wrong.
func requireSyntax(t require.TestingT, text []byte, err error) {
	if err == nil {
		require.True(t, isObject(text), "%q was accepted", text)
		return
	}
	message := requireRefusal(t, err, http.StatusBadRequest).Message
	for _, m := range syntaxMessages {
		if strings.Contains(message, m) && !strings.HasSuffix(message, "wrong type") {
			require.False(t, isObject(text), "%q was refused: %s", text, message)
		}
	}
}

func TestTheScannerTakesWhatIsJSON(t *testing.T) {
	t.Parallel()
	pieces := []string{
		strings.Repeat("a", 30), `"`, `\`, `\"`, `\n`, `\/`, `\x`, `\u00e9`, `\uD83d`, `\ude00`, `\u12`, "é", "漢", "😀", "\xff", "\xe6\xbc", "\x01", "\n", byteOrderMark,
		"{", "}", "[", "]", ":", ",", "true", "false", "null", "nul", " ", "0", "1", "-", "-0", "1.5", ".", "e", "E+1", "1e-5", "01", "2.", "[]", "{}", `{"a":[1,{"b":null}]}`,
		`"x":1`, `"x":`, `,"y":"`, `"stream":true`, `"model":"m"`,
	}
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 0, 12).Draw(t, "pieces"), "")
		frame := rapid.SampledFrom([][2]string{{"", ""}, {`{"model":"m","x":"`, `"}`}, {`{"model":"m","x":[`, `]}`}, {`{"model":"m","x":`, `}`}, {`{"model":"m",`, `}`}}).Draw(t, "frame")
		text = frame[0] + text + frame[1]
		whole, err := bodyOf([]byte(text), len(text)+1).ReadFields(target.Chat, Identity, testLimit)
		requireSyntax(t, []byte(text), err)
		size := rapid.IntRange(1, 20).Draw(t, "size")
		cut, cutErr := bodyOf([]byte(text), size).ReadFields(target.Chat, Identity, testLimit)
		require.Equal(t, err, cutErr, "pieces of %d bytes", size)
		if err == nil {
			require.Equal(t, whole, cut)
		}
	})
}

// Two readers must not find two models or two limits in one body.
func TestNamesThatEnginesMayTakeForOthersAreRefused(t *testing.T) {
	t.Parallel()
	for name, own := range map[string]string{
		"Model": "model", "MODEL": "model", "mo_del": "model", "-model": "model", `m\u004fdel`: "model",
		"ſtream": "stream", "STREAM": "stream", "ﬅream": "stream", "s_tream": "stream",
		"MAX_TOKENS": "max_tokens", "max_toKens": "max_tokens", `max_to\u212aens`: "max_tokens", "max-tokens": "max_tokens", "max__tokens": "max_tokens",
		"Max_Completion_Tokens": "max_completion_tokens", "max_Output_tokens": "max_output_tokens",
		"Messages": "messages", "meßages": "messages", "meẞageſ": "messages", "SYSTEM": "system", "syﬆem": "system", "Prompt": "prompt",
		"Input": "input", "İnput": "input", "ınstructıons": "instructions", "Query": "query", "documentS": "documents", "toolſ": "tools", "Functions": "functions",
	} {
		for _, text := range []string{`{"model":"m","` + name + `":1}`, `{"` + name + `":"big","model":"m"}`} {
			_, err := read(text)
			r := requireRefusal(t, err, http.StatusBadRequest)
			require.Equal(t, "request_invalid", r.Code)
			require.Contains(t, r.Message, "engines may take for "+own+": write "+own, name)
			require.NotContains(t, r.Message, "\\u", "the name as an engine reads it")
		}
	}
}

// A reader that ignores - and _ finds model in each of these.
func TestNamesWithManyDelimitersAreRefused(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		strings.Repeat("-", 300) + "model", "model" + strings.Repeat("_", 300), "mod" + strings.Repeat("-_", 200) + "EL",
		strings.Repeat(`\u002d`, 60) + "model", "m" + strings.Repeat(`\u005F`, 60) + "odel", "m\u006f" + strings.Repeat("-", 245) + `\u002d` + "del",
	} {
		_, err := read(`{"model":"small","` + name + `":"big"}`)
		require.Contains(t, requireRefusal(t, err, http.StatusBadRequest).Message, "engines may take it for another one", name)
	}
}

func TestOtherNamesPass(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"maxTokens", "maxCompletionTokens", "maxtokens", "models", "mode", "modèl", "stream_options", "tool_choice", "Tool", "topK", "top_p", "Temperature", "",
		strings.Repeat("m", 300) + "odel", strings.Repeat("a_name-of_", 30), strings.Repeat("模", 100), strings.Repeat(`\u00e9`, 60), `\"model\"`, "model\\u0000", "模型",
	} {
		got, err := read(`{"` + name + `":"x","model":"m","x":{"Model":1,"MAX_TOKENS":2}}`)
		require.NoError(t, err, name)
		require.Equal(t, plain("m"), got, name)
	}
	// Only chat streams.
	_, err := bodyOf([]byte(`{"model":"m","Stream":1}`), 100).ReadFields(target.Embedding, Identity, testLimit)
	require.NoError(t, err)
}

func TestTheLargerDeclaredOutputCounts(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{"model":"m","max_completion_tokens":700,"max_output_tokens":1}`,
		`{"model":"m","max_output_tokens":1,"max_completion_tokens":700}`,
		`{"model":"m","max_output_tokens":700,"max_completion_tokens":-1}`,
	} {
		got, err := read(text)
		require.NoError(t, err)
		require.EqualValues(t, 700, got.MaxCompletionTokens, text)
	}
}

func TestPlainPrefixEndsAtTheFirstSpecialByte(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.OneOf(rapid.ByteRange(0x20, 0x7e), rapid.Byte()), 0, 60).Draw(t, "bytes")
		want := 0
		for want < len(b) && b[want] >= 0x20 && b[want] < 0x80 && b[want] != '"' && b[want] != '\\' {
			want++
		}
		require.Equal(t, want, plainPrefix(b))
	})
}
