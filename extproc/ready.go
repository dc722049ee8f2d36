// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"net/http"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/wire"
)

// isReadyCheck reports whether the request is a load balancer's readiness check.
func (h *head) isReadyCheck() bool {
	method := string(h.method)
	return string(h.pathOnly()) == envoy.ReadyPath && (method == http.MethodGet || method == http.MethodHead)
}

// readiness returns the answer to a readiness check. A check needs no key, and is neither
// counted nor recorded.
func (s *Server) readiness() *extprocv3.ProcessingResponse {
	status, body := http.StatusOK, `{"status":"ready"}`
	if s.d.NotReady != nil && s.d.NotReady() != "" {
		status, body = http.StatusServiceUnavailable, `{"status":"not ready"}`
	}
	return wire.Immediate(status, wire.HeaderList{{"content-type", "application/json"}}, []byte(body))
}
