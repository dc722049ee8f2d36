// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// maxEvents is the longest answer to a refused call of Events, and the longest line of an event.
const maxEvents = 64 << 10

// Events calls f with the data of each event of a router, and with its id if it has one, until ctx
// ends, f returns an error, or the router ends the stream, which is no error. last is the id of
// the event after which to begin; empty: from now on.
func (c *Client) Events(ctx context.Context, last string, f func(id string, data []byte) error) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/v1/events", http.NoBody)
	if err != nil {
		return fmt.Errorf("asking the router: %w", err)
	}
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	endless := *c.http
	endless.Timeout = 0
	resp, err := endless.Do(req)
	if err != nil {
		return noAnswer(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		body, err := io.ReadAll(io.LimitReader(resp.Body, maxEvents))
		if err != nil {
			return fmt.Errorf("reading the router's answer: %w", err)
		}
		return refusal(resp.StatusCode, body)
	}
	return readEvents(resp.Body, f)
}

func readEvents(body io.Reader, f func(id string, data []byte) error) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxEvents)
	id := ""
	for lines.Scan() {
		line := lines.Text()
		if value, ok := strings.CutPrefix(line, "id: "); ok {
			id = value
		}
		if value, ok := strings.CutPrefix(line, "data: "); ok {
			if err := f(id, []byte(value)); err != nil {
				return err
			}
			id = ""
		}
	}
	if err := lines.Err(); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("reading events: %w", err)
	}
	return nil
}
