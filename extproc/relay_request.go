// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"golang.org/x/net/http/httpguts"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/internal/descriptors"
)

// NewRelay returns a client of Envoy's relay lane. A call waits while this process has no
// file descriptor for its connection: an error would count as a failure of the replica.
func NewRelay(network, address string) http.RoundTripper {
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	return descriptors.Patient(&http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, address)
		},
		// The engine's bytes are passed on as they are.
		DisableCompression:  true,
		MaxIdleConnsPerHost: 256,
		IdleConnTimeout:     30 * time.Second,
	})
}

// hopByHop are the headers of one connection, which are not passed on.
var hopByHop = map[string]bool{
	"connection": true, "keep-alive": true, "proxy-connection": true, "proxy-authenticate": true,
	"proxy-authorization": true, "te": true, "trailer": true, "transfer-encoding": true, "upgrade": true,
}

// request returns the request as the client sent it, without the headers of its connection
// and of the router, and without hosts and headers that net/http refuses to send: Envoy
// (1.40) accepts hosts like a@b, and values with a CR. The engine must answer in identity
// coding, because keepalives may have begun the answer.
func (r *relay) request(ctx context.Context) *http.Request {
	p, fl, body := r.p, r.p.flight, r.p.upload.held
	req := &http.Request{
		Method: p.req.Method,
		URL:    &url.URL{Scheme: "http", Host: "relay", Opaque: r.engine.Prefix + cmp.Or(fl.forward.PathAndQuery, p.req.PathAndQuery)},
		Proto:  "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header:        http.Header{"User-Agent": nil},
		ContentLength: int64(len(body)),
	}
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	req.Body, _ = req.GetBody()
	for name, value := range p.head.block.All() {
		n := string(name)
		switch {
		case n == headerAuthority:
			req.Host = string(value)
		case !httpguts.ValidHeaderFieldName(n), !httpguts.ValidHeaderFieldValue(string(value)):
		case n == "content-encoding" && p.upload.rewritten, n == headerOrigin && p.cors.on:
		case fl.forward.StripKeys && !p.to.throughGateway() && (n == headerAuthorization || n == headerAPIKey):
		case n == "accept-encoding", n == "content-length", n == "expect", n == headerRequestID, hopByHop[n],
			strings.HasPrefix(n, ":"), strings.HasPrefix(n, wakePrefix), strings.HasPrefix(n, ownPrefix):
		default:
			req.Header.Add(n, string(value))
		}
	}
	if !httpguts.ValidHostHeader(req.Host) {
		req.Host = ""
	}
	req.Header.Set("Accept-Encoding", "identity")
	req.Header.Set(headerRequestID, fl.id)
	if p.to.throughGateway() {
		return req.WithContext(ctx)
	}
	r.engine.relay(req, fl.host)
	req.Header.Set(envoy.DestinationHeader, r.grant.Replica().Address)
	if fl.stream != "" {
		req.Header.Add(envoy.ViaHeader, fl.stream)
	}
	return req.WithContext(ctx)
}

const serverTiming = "server-timing"

// relayedHeaders returns the engine's headers, with timing added to Server-Timing.
func relayedHeaders(resp *http.Response, timing string) []*corev3.HeaderValue {
	var out []*corev3.HeaderValue
	for name, values := range resp.Header {
		n := strings.ToLower(name)
		if hopByHop[n] || strings.HasPrefix(n, ownPrefix) {
			continue
		}
		if n == serverTiming {
			values, timing = append(values, timing), ""
		}
		// Of several headers with one name in a streamed answer, Envoy (1.40) keeps only
		// the last, so values are joined as HTTP allows. Cookies cannot be joined.
		value := strings.Join(values, ", ")
		if n == "set-cookie" {
			value = values[len(values)-1]
		}
		out = append(out, &corev3.HeaderValue{Key: n, RawValue: []byte(value)})
	}
	if timing != "" {
		out = append(out, &corev3.HeaderValue{Key: serverTiming, RawValue: []byte(timing)})
	}
	return out
}
