// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"io"
	"net/http"
	"sync/atomic"

	"github.com/holdgate/holdgate/agentreg/agent/engines/enginestest"
)

// fake replays what an engine answers: the text of a path, 404 for others.
type fake struct {
	get map[string]string
	// completions count the chat completions, of which the first so many are
	// refused with refusal.
	completions atomic.Int64
	refused     atomic.Int64
	refusal     string
	last        atomic.Value // the body of the last completion
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if text, ok := f.get[r.URL.Path]; ok && r.Method == http.MethodGet {
		_, _ = io.WriteString(w, text)
		return
	}
	if r.Method != http.MethodPost || r.URL.Path != "/v1/chat/completions" {
		http.NotFound(w, r)
		return
	}
	body, _ := io.ReadAll(r.Body)
	f.last.Store(string(body))
	if f.completions.Add(1) <= f.refused.Load() {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, f.refusal)
		return
	}
	_, _ = io.WriteString(w, `{"id":"chatcmpl-1","object":"chat.completion","choices":[{"index":0,"finish_reason":"length","message":{"role":"assistant","content":"Hello"}}]}`)
}

// newFake is an engine with all of its answers.
func newFake(engine string) *fake { return &fake{get: enginestest.Answers[engine]} }
