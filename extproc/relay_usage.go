// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"mime"
	"net/http"
	"time"

	"github.com/holdgate/holdgate/extproc/body"
)

// usageReader returns a reader of what the engine says of the tokens of a good answer. It is nil for
// an answer that is neither JSON nor a stream of events, or that is passed on compressed.
func (r *relay) usageReader(resp *http.Response) *body.UsageReader {
	if resp.StatusCode >= http.StatusMultipleChoices || !r.answer.committed && body.IsCoded(resp) {
		return nil
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch kind {
	case "text/event-stream":
		return body.NewUsageReader(true)
	case "application/json":
		return body.NewUsageReader(false)
	case "":
		return body.NewUsageReader(r.p.req.Stream)
	}
	return nil
}

// readAlong reads along with a part of the engine's body.
func (r *relay) readAlong(data []byte) {
	if r.usage == nil || len(data) == 0 {
		return
	}
	if !r.begun && r.p.req.Stream {
		fl := r.p.flight
		fl.note(func(rec *Record) { rec.FirstToken = time.Since(fl.arrived) })
	}
	r.begun = true
	r.usage.Add(data)
}

// noteUsage records what the engine said of the tokens.
func (r *relay) noteUsage() {
	if r.usage != nil {
		r.p.flight.note(func(rec *Record) { rec.Usage = r.usage.Usage() })
	}
}
