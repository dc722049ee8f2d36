// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/body"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/descriptors"
	"github.com/holdgate/holdgate/internal/pause"
	"github.com/holdgate/holdgate/internal/ticket"
)

// Destination is how a request is sent on.
type Destination uint8

// The destinations.
const (
	// ToReplica: by the clusters of Holdgate's own bootstrap to the address of its grant.
	ToReplica Destination = iota
	// ByRoute: where a gateway's own route leads. The router only decides when.
	ByRoute
	// AsPicker: to the addresses that the router names to a gateway.
	AsPicker
)

// A held request through a gateway whose answer has begun with a keepalive is sent back to the
// gateway by the relay, with a ticket, and passes the filter there a second time: see comeBack.
// Any other goes on itself.

// throughGateway reports whether a gateway sends the request on, by its own clusters.
func (d Destination) throughGateway() bool { return d != ToReplica }

// gatewayNotTaken is the status with which a gateway answers that it has no engine.
const gatewayNotTaken = "503"

// canRelay reports whether there is a way by which the request can be relayed.
func (p *pass) canRelay() bool {
	if p.to.throughGateway() {
		return p.s.d.Gateway != nil && p.mayStream()
	}
	return p.s.d.Relay != nil
}

// relaysTrailers reports whether the request is relayed although nothing of its answer was
// sent, because it has trailers. Another full-duplex filter behind this one, such as an
// endpoint picker's, answers the trailers after it has sent the body on, and then Envoy (1.37.0
// to 1.40.0) sends the body a second time where the route has a retry policy. The relay sends
// none.
func (p *pass) relaysTrailers() bool { return p.to == ByRoute && p.upload.trailers && p.canRelay() }

// relayAtOnce relays a request that has not waited. again is true when it must be decided
// again.
func (p *pass) relayAtOnce(g holdstate.Grant) (again bool, err error) {
	p.watch()
	p.upload.hold()
	r := &relay{p: p, answer: &answer{p: p}, grant: g}
	return r.run()
}

// mayStream reports whether an answer to the request may be streamed.
func (p *pass) mayStream() bool {
	return !p.to.throughGateway() || !p.s.streamed.refuses(p.flight.envoy)
}

// sentOn ends a request that was sent on through a gateway that does not tell when it ends.
func (p *pass) sentOn(g holdstate.Grant) {
	p.flight.note(func(r *Record) { r.carried(g) })
	g.Release()
	p.s.end(p.flight)
	p.s.noLog.Do(func() {
		p.s.d.Log.Warn().Msg("no access log of this gateway has come yet: until it does, its requests have no slot once they are sent on, so the router does not limit how many an engine gets")
	})
}

// logTells is called when the access log of an Envoy has come with the router's metadata.
func (s *Server) logTells(from string) {
	if s.logs.tells(from) {
		s.d.Log.Debug().Str("envoy", from).Msg("an access log comes from this Envoy: requests that it carries have slots until they end")
	}
}

// flags returns Envoy's response flags of an answer of the relay lane. An answer that comes
// through a gateway has none: a header of this name would be an engine's.
func (r *relay) flags(resp *http.Response) string {
	if r.p.to.throughGateway() {
		return ""
	}
	return resp.Header.Get(envoy.FlagsHeader)
}

// What an Envoy says in its own 503 of an engine that had taken the request.
var diedReasons = []string{"reset reason: connection termination", "reset reason: remote reset"}

const (
	// reasonBytes is how much of a gateway's own answer is read, and reasonWait how long.
	reasonBytes = 1 << 10
	reasonWait  = time.Second
)

// whyNotTaken returns what a proxy's own answer says of the engine. A gateway answers with the same
// status when it has no engine and when one died before its answer. The second must be known: a
// request that makes engines die would end one after the other. cancel ends the call.
func (r *relay) whyNotTaken(resp *http.Response, cancel func()) failure {
	if !r.p.to.throughGateway() {
		return failNotTaken
	}
	late := time.AfterFunc(reasonWait, cancel)
	defer late.Stop()
	text, _ := io.ReadAll(io.LimitReader(body.DecodedAnswer(resp), reasonBytes)) // a part of it is enough
	for _, reason := range diedReasons {
		if bytes.Contains(text, []byte(reason)) {
			return failDied
		}
	}
	return failNotTaken
}

// addTicket gives a request of the relay its ticket.
func (r *relay) addTicket(req *http.Request) error {
	p, at := r.p, r.grant.Replica()
	claims := ticket.Claims{
		RequestID: p.flight.id, Model: p.req.Model, AgentID: at.ID, Engine: at.Engine,
		Method: req.Method, PathAndQuery: req.URL.Opaque, Body: sha256.Sum256(p.upload.held), Size: req.ContentLength,
	}
	if p.to == AsPicker {
		claims.Address = at.Address
	}
	text, err := p.s.d.Tickets.Sign(&claims)
	if err != nil {
		return err
	}
	req.Header.Set(envoy.TicketHeader, text)
	return nil
}

// gateway calls a gateway's listener for clients.
type gateway struct {
	http.RoundTripper

	scheme, host string
}

// NewGateway returns a client of the gateway at a URL of http or https, of which only scheme,
// host and port count. roots are the authorities of its certificate; nil: the system's.
func NewGateway(at *url.URL, roots *x509.CertPool) http.RoundTripper {
	return &gateway{scheme: at.Scheme, host: at.Host, RoundTripper: descriptors.Patient(&http.Transport{
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots},
		TLSHandshakeTimeout: 5 * time.Second,
		DisableCompression:  true,
		MaxIdleConnsPerHost: 256,
		IdleConnTimeout:     30 * time.Second,
	})}
}

// A gateway that cannot be reached is tried again, because it may be restarting, or be several
// behind one name. The pause doubles from firstPause up to lastPause.
const (
	firstPause = 250 * time.Millisecond
	lastPause  = 2 * time.Second
)

// RoundTrip is part of http.RoundTripper. The host in the request is the client's. The request
// must have GetBody.
func (g *gateway) RoundTrip(req *http.Request) (*http.Response, error) {
	to := *req.URL
	to.Scheme, to.Host = g.scheme, g.host
	sent := req.WithContext(req.Context())
	sent.URL = &to
	for wait := firstPause; ; wait *= 2 {
		resp, err := g.RoundTripper.RoundTrip(sent)
		dial, ok := errors.AsType[*net.OpError](err)
		if !ok || dial.Op != "dial" || wait > lastPause || !pause.For(req.Context(), wait) {
			return resp, err //nolint:wrapcheck // the caller says what was being done
		}
		if sent.Body, err = req.GetBody(); err != nil {
			return nil, err //nolint:wrapcheck // as above
		}
	}
}
