// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"net/http"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/wire"
)

// asksIfReady says whether the request is a load balancer's question at our own edge. In
// somebody else's Envoy the path may be an application's.
func (st *stream) asksIfReady(lane string) bool {
	method := string(st.head.method)
	return lane == envoy.LaneEdge && string(st.head.pathOnly()) == envoy.ReadyPath &&
		(method == http.MethodGet || method == http.MethodHead)
}

// ready answers it. It is no request of a caller: it needs no key, and is neither
// counted nor on record.
func (st *stream) ready() {
	status, body := http.StatusOK, `{"status":"ready"}`
	if st.s.d.NotReady != nil && st.s.d.NotReady() != "" {
		status, body = http.StatusServiceUnavailable, `{"status":"not ready"}`
	}
	st.send(wire.Immediate(status, wire.HeaderList{{"content-type", "application/json"}}, []byte(body)))
}
