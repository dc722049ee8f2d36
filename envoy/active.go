// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"context"
	"encoding/json/v2"
	"fmt"
	"net/http"
)

// ActiveRequests is the number of requests that the edge carries, by Envoy's own
// count.
func (p *Process) ActiveRequests(ctx context.Context) (int, error) {
	url := "http://" + p.AdminAddr() + "/stats?format=json&filter=^http.edge.downstream_rq_active$"
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, fmt.Errorf("asking Envoy for its requests: %w", err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, fmt.Errorf("asking Envoy for its requests: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	var answer struct {
		Stats []struct {
			Value int `json:"value"`
		} `json:"stats"`
	}
	if err := json.UnmarshalRead(resp.Body, &answer); err != nil {
		return 0, fmt.Errorf("reading Envoy's answer: %w", err)
	}
	n := 0
	for _, s := range answer.Stats {
		n += s.Value
	}
	return n, nil
}
