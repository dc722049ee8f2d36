// SPDX-License-Identifier: Apache-2.0

package refusal

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// An engine's error keeps its fields in each of the three APIs, in every form that
// engines use.
func TestWhatAnEngineSaysOfItsError(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text                         string
		openAI, anthropic, responses string
	}{
		"vLLM": {
			`{"error":{"message":"too long","type":"BadRequestError","param":"messages","code":400}}`,
			`"type":"BadRequestError","code":400,"message":"too long","param":"messages"`,
			`"type":"BadRequestError","code":400,"message":"400: too long","param":"messages"`,
			`"code":"400","message":"too long","param":"messages"`,
		},
		"fields at the top": {
			`{"object":"error","message":"too long","type":"BadRequestError","param":null,"code":"context"}`,
			`"type":"BadRequestError","code":"context","message":"too long","param":null`,
			`"type":"BadRequestError","code":"context","message":"context: too long","param":null`,
			`"code":"context","message":"too long","param":null`,
		},
		"Anthropic's": {
			`{"type":"error","error":{"type":"rate_limit_error","message":"slow\ndown"}}`,
			`"type":"rate_limit_error","code":"backend_error","message":"slow\ndown"`,
			`"type":"rate_limit_error","code":"backend_error","message":"backend_error: slow\ndown"`,
			`"code":"backend_error","message":"slow\ndown","param":null`,
		},
		"a string, and no type": {
			`{"error":"no such model"}`,
			`"code":"backend_error","message":"no such model"`,
			`"type":"invalid_request_error","code":"backend_error","message":"backend_error: no such model"`,
			`"code":"backend_error","message":"no such model","param":null`,
		},
		"a parameter of many lines, odd types": {
			"{\"error\":{\"message\":\"no\",\"type\":7,\"code\":{},\"param\":{\r\n \"a\": [1,\n2]}}}",
			`"code":"backend_error","message":"no","param":{"a":[1,2]}`,
			`"type":"invalid_request_error","code":"backend_error","message":"backend_error: no","param":{"a":[1,2]}`,
			`"code":"backend_error","message":"no","param":{"a":[1,2]}`,
		},
		"no error": {
			`[1]`,
			`"code":"backend_error","message":"the engine answered with status 400"`,
			`"type":"invalid_request_error","code":"backend_error","message":"backend_error: the engine answered with status 400"`,
			`"code":"backend_error","message":"the engine answered with status 400","param":null`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := FromEngine(http.StatusBadRequest, strings.NewReader(c.text))
			require.Equal(t, `data: {"error":{`+c.openAI+`,"source":"engine"}}`+"\n\n", string(r.Event(OpenAI)))
			require.Equal(t, "event: error\ndata: "+`{"type":"error","error":{`+c.anthropic+`,"source":"engine"}}`+"\n\n", string(r.Event(Anthropic)))
			first, second, _ := strings.Cut(string(r.Event(Responses)), "\n\nevent: response.failed\n")
			require.Equal(t, "event: error\ndata: "+`{"type":"error","sequence_number":0,`+c.responses+`,"error":{`+c.openAI+`,"source":"engine"}}`, first)
			codeAndMessage, _, _ := strings.Cut(c.responses, `,"param"`)
			require.Equal(t, `data: {"type":"response.failed","sequence_number":1,"response":{"object":"response","status":"failed","error":{`+codeAndMessage+"}}}\n\n", second)
			require.Equal(t, "backend_error", r.Code, "the logged code is the router's")
		})
	}
}
