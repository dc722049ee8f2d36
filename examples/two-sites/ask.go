// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json/v2"
	"fmt"
	"io"
	"net/http"
	"strings"
)

const (
	path = "/v1/chat/completions"
	body = `{"model": "` + model + `", "messages": [{"role": "user", "content": "Who are you?"}]}`
)

// ask sends the request of the curl command and checks that site b has answered it.
func (f *fleet) ask(ctx context.Context, out io.Writer) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, f.a.url+path, strings.NewReader(body))
	if err != nil {
		return fmt.Errorf("asking site a: %w", err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+f.key)
	var redirects []string
	c := &http.Client{CheckRedirect: func(next *http.Request, via []*http.Request) error {
		if len(via) > 1 {
			return http.ErrUseLastResponse
		}
		if next.Header.Get("Authorization") != "" {
			return fmt.Errorf("the key goes along to %s, so the token is not tried", next.URL.Host)
		}
		redirects = append(redirects, next.URL.Scheme+"://"+next.URL.Host)
		return nil
	}}
	defer c.CloseIdleConnections()
	resp, err := c.Do(r)
	if err != nil {
		return fmt.Errorf("asking site a: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("reading the answer: %w", err)
	}
	var answer struct {
		Choices []struct {
			Message struct {
				Content string `json:"content"`
			} `json:"message"`
		} `json:"choices"`
	}
	if err := json.Unmarshal(text, &answer); err != nil || resp.StatusCode != http.StatusOK || len(answer.Choices) == 0 {
		return fmt.Errorf("the answer is status %d: %s", resp.StatusCode, text)
	}
	if got := answer.Choices[0].Message.Content; got != greeting(f.b.id) {
		return fmt.Errorf("the answer is %q, and must be %q", got, greeting(f.b.id))
	}
	if len(redirects) != 1 || redirects[0] != f.b.url {
		return fmt.Errorf("the request went to %v, and must go to %s", redirects, f.b.url)
	}
	fmt.Fprintf(out, "asked %s, was redirected to %s: %s\n", f.a.url, f.b.url, greeting(f.b.id))
	return nil
}
