// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func automatic(o *Options) { o.LateError = LateErrorAuto }

// In auto mode an answer is cut where an SDK would return the error as a success,
// and nowhere else.
func TestLateErrorsInAutoMode(t *testing.T) {
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
				x := r.ask(t, request(chatPath, fmt.Sprintf(`{"model":"m","stream":%t}`, c.stream), c.headers...))
				err := x.end()
				got := x.all()
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

// An engine's error behind keepalives is passed on to its end, and then cut for an SDK.
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
				x := r.ask(t, request(chatPath, `{"model":"m"}`, headers...))
				pass(20 * time.Second)
				r.slots.up(engineA, 1)
				body := r.engine.call(t, 1).respond(code)
				go func() {
					_, _ = io.WriteString(body, `{"error":"no"}`)
					_ = body.Close()
				}()
				err := x.end()
				require.Equal(t, sdk, status.Code(err) == codes.Aborted, err)
				require.Equal(t, []string{"15s head 200", "15s " + space, `20s "{\"error\":\"no\"}"`, ending}, x.all())
			}, automatic)
		}
	}
}

// An engine's error keeps what the engine says of it, in each protocol and in the
// forms that engines have.
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
			r := engineRefusal(&http.Response{StatusCode: http.StatusBadRequest, Body: io.NopCloser(strings.NewReader(c.text))})
			require.Equal(t, `data: {"error":{`+c.openAI+`,"source":"engine"}}`+"\n\n", string(r.event(OpenAI)))
			require.Equal(t, "event: error\ndata: "+`{"type":"error","error":{`+c.anthropic+`,"source":"engine"}}`+"\n\n", string(r.event(Anthropic)))
			first, second, _ := strings.Cut(string(r.event(Responses)), "\n\nevent: response.failed\n")
			require.Equal(t, "event: error\ndata: "+`{"type":"error","sequence_number":0,`+c.responses+`,"error":{`+c.openAI+`,"source":"engine"}}`, first)
			codeAndMessage, _, _ := strings.Cut(c.responses, `,"param"`)
			require.Equal(t, `data: {"type":"response.failed","sequence_number":1,"response":{"object":"response","status":"failed","error":{`+codeAndMessage+"}}}\n\n", second)
			require.Equal(t, "backend_error", r.Code, "what goes on record is ours")
		})
	}
}
