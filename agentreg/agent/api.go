// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"

	"github.com/holdgate/holdgate/agentreg/protocol"
)

// maxAnswer is how many bytes of an engine's response are read.
const maxAnswer = 4 << 20

// maxErrorText is how many bytes of the body of an error response are in the error.
const maxErrorText = 200

// api sends HTTP requests to the engine.
type api struct {
	client *http.Client
	base   string
	host   string // empty: that of base
	key    string // a bearer token, empty for none
}

// newAPI returns a client that connects to the address at, whatever the host of backend
// resolves to, so that the engine that is checked is the one that is registered.
func newAPI(cfg Config, backend *url.URL, at func() netip.AddrPort) api {
	client := cfg.HTTPClient
	if cfg.roundTrip != nil {
		client = &http.Client{Transport: roundTripFunc(func(r *http.Request) (*http.Response, error) { return cfg.roundTrip(at(), r) })}
	}
	if client == nil {
		dialer := &net.Dialer{}
		client = &http.Client{
			Transport: &http.Transport{
				DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
					if backend.Scheme == unixScheme {
						return dialer.DialContext(ctx, unixScheme, backend.Path)
					}
					return dialer.DialContext(ctx, network, at().String())
				},
				TLSClientConfig: cfg.BackendTLS,
				// A kept-alive connection may belong to a process that has ended.
				DisableKeepAlives: true,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	base := backend.String()
	if backend.Scheme == unixScheme {
		base = "http://" + protocol.PoolOf(backend.Path)
	}
	return api{client: client, base: base, host: cfg.Host, key: cfg.APIKey}
}

type roundTripFunc func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (t roundTripFunc) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// get sends a GET and returns the body of the response. A status other than 2xx is an error.
func (a api) get(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.base+path, nil)
	if err != nil {
		return nil, err
	}
	return a.do(req)
}

// post sends a POST with a JSON body and returns like get.
func (a api) post(ctx context.Context, path string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return a.do(req)
}

func (a api) do(req *http.Request) ([]byte, error) {
	if a.key != "" {
		req.Header.Set("Authorization", "Bearer "+a.key)
	}
	req.Host = a.host
	res, err := a.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	switch {
	case res.StatusCode/100 != 2 && len(text) > 0:
		return nil, fmt.Errorf("%s answers %s: %#.*q", req.URL, res.Status, maxErrorText, text)
	case res.StatusCode/100 != 2:
		return nil, fmt.Errorf("%s answers %s", req.URL, res.Status)
	case err != nil:
		return nil, fmt.Errorf("reading the answer of %s: %w", req.URL, err)
	}
	return text, nil
}
