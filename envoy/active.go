// SPDX-License-Identifier: Apache-2.0

package envoy

import "context"

// ActiveRequests returns the number of requests in progress at the edge, as counted by
// Envoy.
func (p *Process) ActiveRequests(ctx context.Context) (int, error) {
	return NewAdmin(p.admin).active(ctx)
}
