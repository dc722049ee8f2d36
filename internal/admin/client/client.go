// SPDX-License-Identifier: Apache-2.0

// Package client calls the admin API of a router. A refusal is an [*Error];
// any other error means that there was no answer of a router.
package client

import (
	"bytes"
	"context"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/holdgate/holdgate/sitemap"
)

const (
	// maxAnswer has room for a map, whose canonical form can be longer than what
	// was pushed.
	maxAnswer = 4 * sitemap.MaxBytes
	timeout   = time.Minute
)

// Client calls one router. It may be used by many goroutines.
type Client struct {
	base  string
	token string
	http  *http.Client
}

// New makes a client for an admin API at http://host:port, https://host:port
// or unix:///path, with its token, or none.
func New(address, token string) (*Client, error) {
	c := &Client{token: token, http: &http.Client{
		Timeout: timeout,
		// No redirect is followed: the token is for this address alone.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	if socket, ok := strings.CutPrefix(address, "unix://"); ok {
		if !strings.HasPrefix(socket, "/") {
			return nil, fmt.Errorf("must name a socket like unix:///run/holdgate/admin.sock, is %q", address)
		}
		c.base = "http://router"
		c.http.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}}
		return c, nil
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return nil, fmt.Errorf("must be http://host:port, https://host:port or unix:///path, is %q", address)
	}
	if u.User != nil || strings.ContainsAny(address, "?#") {
		return nil, errors.New("must be an address without user information, query and fragment")
	}
	c.base = strings.TrimRight(address, "/")
	return c, nil
}

// Call is one call of the API.
type Call struct {
	Method string
	// Path is escaped, and starts with a slash; Query is added to it.
	Path  string
	Query url.Values
	// Header has what this call needs beside the token.
	Header http.Header
	Body   []byte
}

// Answer is what a router says to a call that it carried out.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Do makes a call. An answer of 400 and above is an *Error.
func (c *Client) Do(ctx context.Context, call Call) (*Answer, error) {
	target := c.base + call.Path
	if len(call.Query) > 0 {
		target += "?" + call.Query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, call.Method, target, bytes.NewReader(call.Body))
	if err != nil {
		return nil, fmt.Errorf("asking the router: %w", err)
	}
	maps.Copy(req.Header, call.Header)
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	if len(call.Body) > 0 {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, noAnswer(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading the router's answer: %w", err)
	case len(body) > maxAnswer:
		return nil, fmt.Errorf("reading the router's answer: it is larger than %d bytes", maxAnswer)
	case resp.StatusCode >= http.StatusBadRequest:
		return nil, refusal(resp.StatusCode, body)
	case resp.StatusCode >= http.StatusMultipleChoices && resp.StatusCode != http.StatusNotModified:
		return nil, fmt.Errorf("asking the router: status %d is not an answer of an admin API", resp.StatusCode)
	}
	return &Answer{Status: resp.StatusCode, Header: resp.Header, Body: body}, nil
}

// noAnswer returns the error of a call that no router answered.
func noAnswer(err error) error {
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) { // there is no such socket
		return fmt.Errorf("asking the router: %w: is holdgate serve running there? --admin names its --admin-listen", err)
	}
	return fmt.Errorf("asking the router: %w", err)
}

// JSON makes a call and reads the answer into out.
func (c *Client) JSON(ctx context.Context, call Call, out any) error {
	answer, err := c.Do(ctx, call)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(answer.Body, out); err != nil {
		return fmt.Errorf("reading the router's answer: %w", err)
	}
	return nil
}
