// SPDX-License-Identifier: Apache-2.0

// Package certs loads the TLS certificate of a server, its key and the authorities of its
// clients, reloads them when their files change, and logs which clients are refused.
package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/holdgate/holdgate/internal/reload"
)

// File is the path of a file and the flag that sets it, without dashes.
type File struct{ Setting, Path string }

// Files are the files of one server.
type Files struct {
	Cert, Key File
	// ClientCA has the authorities of clients' certificates. If its path is empty,
	// clients need no certificate.
	ClientCA File
	// ClientNames are the names of which a client's certificate must have one, among its DNS
	// names and URIs. Without them every certificate of ClientCA is accepted.
	ClientNames []string
	// TLS12 accepts clients of TLS 1.2, which is what an Envoy uses unless its configuration
	// says otherwise.
	TLS12 bool
}

// Server is the TLS configuration of a server. A handshake uses the last valid version of the
// files; open connections are not affected by a change.
type Server struct {
	pair    *reload.File[pair]
	clients *reload.File[x509.CertPool] // nil when clients need no certificate
	names   []string                    // empty: a certificate may have any name
	least   uint16                      // version of TLS
}

// pair is a certificate with its key.
type pair struct {
	tls.Certificate

	keyFile string
}

// Files returns the files that package reload must watch besides the certificate.
func (p *pair) Files() []string { return []string{p.keyFile} }

// Load reads the files for the first time. It does not use o.Setting.
func Load(f Files, o reload.Options) (*Server, error) {
	s := &Server{names: f.ClientNames, least: tls.VersionTLS13}
	if f.TLS12 {
		s.least = tls.VersionTLS12
	}
	var err error
	o.Setting = f.Cert.Setting
	if s.pair, err = reload.Load(f.Cert.Path, pairParser(f.Key), o); err != nil {
		return nil, err
	}
	if f.ClientCA.Path == "" {
		return s, nil
	}
	o.Setting = f.ClientCA.Setting
	parse := func(data []byte, _ *x509.CertPool) (*x509.CertPool, error) { return Authorities(data) }
	s.clients, err = reload.Load(f.ClientCA.Path, parse, o)
	return s, err
}

func pairParser(key File) reload.Parser[pair] {
	return func(data []byte, inForce *pair) (*pair, error) {
		keyData, err := reload.Read(key.Path, reload.MaxBytes)
		if err != nil {
			return nil, fmt.Errorf("reading --%s: %w", key.Setting, err)
		}
		c, err := tls.X509KeyPair(data, keyData)
		if err != nil {
			return nil, fmt.Errorf("reading it with --%s: %w", key.Setting, err)
		}
		if inForce != nil && slices.EqualFunc(c.Certificate, inForce.Certificate.Certificate, bytes.Equal) {
			return inForce, nil // the certificate is the same, and so its key
		}
		return &pair{Certificate: c, keyFile: key.Path}, nil
	}
}

// Authorities parses the certificates of authorities, in PEM.
func Authorities(data []byte) (*x509.CertPool, error) {
	return AddAuthorities(x509.NewCertPool(), data)
}

// ReadAuthorities reads a file with the certificates of authorities, in PEM.
func ReadAuthorities(path string) (*x509.CertPool, error) {
	text, err := reload.Read(path, reload.MaxBytes)
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the file
	}
	pool, err := Authorities(text)
	if err != nil {
		return nil, fmt.Errorf("%s %w", path, err)
	}
	return pool, nil
}

// AddAuthorities adds the certificates of authorities, in PEM, to a pool.
func AddAuthorities(pool *x509.CertPool, data []byte) (*x509.CertPool, error) {
	if !pool.AppendCertsFromPEM(data) {
		return nil, errors.New("has no certificate in PEM")
	}
	return pool, nil
}

// Config returns the configuration of the server.
func (s *Server) Config() *tls.Config {
	return &tls.Config{
		MinVersion:         s.least,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.current(), nil },
	}
}

func (s *Server) current() *tls.Config {
	c := &tls.Config{
		MinVersion:   s.least,
		Certificates: []tls.Certificate{s.pair.Current().Certificate},
		// A resumed session would not be checked against new authorities.
		SessionTicketsDisabled: true,
	}
	if s.clients != nil {
		c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, s.clients.Current()
	}
	if len(s.names) > 0 {
		c.VerifyConnection = s.checkName
	}
	return c
}

// checkName returns ErrName if the client's certificate has none of the names.
func (s *Server) checkName(state tls.ConnectionState) error {
	if len(state.PeerCertificates) == 0 {
		return ErrName
	}
	cert := state.PeerCertificates[0]
	for _, name := range s.names {
		if slices.ContainsFunc(cert.DNSNames, func(dns string) bool { return strings.EqualFold(dns, name) }) ||
			slices.ContainsFunc(cert.URIs, func(uri *url.URL) bool { return uri.String() == name }) {
			return nil
		}
	}
	return ErrName
}

// Watch reads the files again when they have changed, until ctx ends.
func (s *Server) Watch(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { s.pair.Watch(ctx) })
	if s.clients != nil {
		wg.Go(func() { s.clients.Watch(ctx) })
	}
	wg.Wait()
}

// Reload reads the files. Invalid ones change nothing.
func (s *Server) Reload() error {
	err := s.pair.Reload()
	if s.clients != nil {
		err = errors.Join(err, s.clients.Reload())
	}
	return err
}
