// SPDX-License-Identifier: Apache-2.0

package envoy

import "context"

// ActiveRequests is the number of requests that the edge carries, by Envoy's own
// count.
func (p *Process) ActiveRequests(ctx context.Context) (int, error) {
	return NewAdmin(p.admin).active(ctx)
}
