// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/grpc/credentials"
)

const (
	// sayAgain is how long a client's refusals for one reason are only counted after a line.
	// Envoy tries again with each request, or each second with a health check.
	sayAgain = time.Minute
	// mostRefusals is how many clients and reasons are told apart within that time. More are
	// not logged.
	mostRefusals = 256
)

// Credentials returns the credentials of a gRPC server. They log which clients were refused, and
// why.
func (s *Server) Credentials(log zerolog.Logger) credentials.TransportCredentials {
	return &loggingCredentials{credentials.NewTLS(s.Config()), &refusals{log: log, said: map[refusal]*said{}}}
}

// loggingCredentials log failed handshakes.
type loggingCredentials struct {
	credentials.TransportCredentials

	refusals *refusals
}

// ServerHandshake is part of credentials.TransportCredentials.
func (c *loggingCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		c.refusals.note(raw.RemoteAddr(), err, time.Now())
	}
	return conn, info, err //nolint:wrapcheck // gRPC expects the errors of the credentials
}

// Clone is part of credentials.TransportCredentials.
func (c *loggingCredentials) Clone() credentials.TransportCredentials {
	return &loggingCredentials{c.TransportCredentials.Clone(), c.refusals}
}

// refusals logs refused clients: a line for each client and reason, and then one per sayAgain.
type refusals struct {
	log zerolog.Logger

	mu   sync.Mutex
	said map[refusal]*said
}

type refusal struct{ peer, reason string }

// said is when a refusal was logged, and how many there were since.
type said struct {
	at   time.Time
	more int
}

// note logs a failed handshake, unless it was logged a short time ago.
func (r *refusals) note(peer net.Addr, err error, now time.Time) {
	reason := reasonOf(err)
	if reason == "" {
		return
	}
	host, _, splitErr := net.SplitHostPort(peer.String())
	if splitErr != nil {
		host = peer.String()
	}
	if more, say := r.count(refusal{host, reason}, now); say {
		r.log.Warn().Str("peer", host).Str("reason", reason).Int("more_since_the_last_line", more).
			Msg("a TLS connection failed")
	}
}

// count counts a refusal. say is true when it is to be logged; more is how many were not logged
// before it.
func (r *refusals) count(which refusal, now time.Time) (more int, say bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := r.said[which]
	if last != nil && now.Sub(last.at) < sayAgain {
		last.more++
		return 0, false
	}
	if last == nil && len(r.said) >= mostRefusals {
		r.forget(now)
		if len(r.said) >= mostRefusals {
			return 0, false
		}
	}
	if last != nil {
		more = last.more
	}
	r.said[which] = &said{at: now}
	return more, true
}

// forget removes what need not be remembered any more.
func (r *refusals) forget(now time.Time) {
	for which, last := range r.said {
		if now.Sub(last.at) >= sayAgain {
			delete(r.said, which)
		}
	}
}

// ErrName means that a client's certificate has none of the names that may connect.
var ErrName = errors.New("the certificate has none of the names that may connect")

// reasonOf returns why a handshake failed, empty if the client has just gone away. It has no
// text that a client chose.
func reasonOf(err error) string {
	if refused, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "the client's certificate " + certificateProblem(refused.Err)
	}
	var remote *net.OpError
	text := err.Error()
	switch {
	case errors.Is(err, ErrName):
		return "the client's certificate has none of the names that may connect"
	case strings.Contains(text, "client didn't provide a certificate"):
		return "the client has no certificate"
	case strings.Contains(text, "first record does not look like a TLS handshake"):
		return "the client speaks no TLS"
	case strings.Contains(text, "client offered only unsupported versions"):
		return "the client's TLS version is too old"
	case errors.As(err, &remote) && remote.Op == "remote error":
		return fmt.Sprintf("the client does not accept this server's certificate, or sent another alert: %v", remote.Err)
	case strings.HasPrefix(text, "tls: "):
		return "the client's TLS handshake is invalid"
	}
	return ""
}

// certificateProblem returns what is wrong with a client's certificate.
func certificateProblem(err error) string {
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok {
		switch invalid.Reason {
		case x509.Expired:
			return "has expired, or is not valid yet"
		case x509.IncompatibleUsage:
			return "is not for clients"
		default:
			return "is invalid"
		}
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "is from another authority"
	}
	return "is invalid"
}
