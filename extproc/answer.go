// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"net/http"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/holdgate/holdgate/extproc/wire"
	"github.com/holdgate/holdgate/internal/refusal"
)

// refused is a refusal before any byte was sent.
func refused(r *refusal.Refusal, api refusal.API, more ...[2]string) *extprocv3.ProcessingResponse {
	headers := append(wire.HeaderList{{"content-type", "application/json"}}, more...)
	if r.RetryAfter > 0 {
		headers = append(headers, [2]string{"retry-after", strconv.Itoa(r.RetryAfter)})
	}
	if r.Allow != "" {
		headers = append(headers, [2]string{"allow", r.Allow})
	}
	return wire.Immediate(r.Status, headers, r.Body(api))
}

// committedHead is the head of an answer that begins before the engine has
// answered.
func (st *stream) committedHead() *extprocv3.ProcessingResponse {
	contentType := "application/json"
	if st.req.Stream {
		contentType = "text/event-stream; charset=utf-8"
	}
	headers := []*corev3.HeaderValue{
		{Key: "content-type", RawValue: []byte(contentType)},
		{Key: "cache-control", RawValue: []byte("no-cache")},
		{Key: "x-accel-buffering", RawValue: []byte("no")},
	}
	return wire.StreamHead(http.StatusOK, st.withCORS(withRateLimit(headers, st.rateLimit)))
}

// headerRateLimit tells a caller what its quota still has.
const headerRateLimit = "x-ratelimit-remaining-requests"

func withRateLimit(headers []*corev3.HeaderValue, rateLimit string) []*corev3.HeaderValue {
	if rateLimit == "" {
		return headers
	}
	return append(headers, &corev3.HeaderValue{Key: headerRateLimit, RawValue: []byte(rateLimit)})
}
