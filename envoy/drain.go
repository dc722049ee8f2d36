// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"context"
	"fmt"
	"net/http"
)

// CloseConnections makes Envoy close each connection of a client after the answer that runs on
// it: by Connection: close, or by a GOAWAY. Answers are not cut, and new connections are
// accepted. KeepConnections ends it.
func (a *Admin) CloseConnections(ctx context.Context) error {
	return a.post(ctx, "/healthcheck/fail")
}

// KeepConnections makes Envoy keep the connections of its clients, as it does after its start.
func (a *Admin) KeepConnections(ctx context.Context) error {
	return a.post(ctx, "/healthcheck/ok")
}

func (a *Admin) post(ctx context.Context, path string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, a.base+path, http.NoBody)
	if err != nil {
		return fmt.Errorf("calling Envoy's admin interface: %w", err)
	}
	resp, err := a.client.Do(r)
	if err != nil {
		return fmt.Errorf("calling Envoy's admin interface: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("calling Envoy's admin interface: it answered %s", resp.Status)
	}
	return nil
}
