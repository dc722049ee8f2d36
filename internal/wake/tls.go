// SPDX-License-Identifier: Apache-2.0

package wake

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/holdgate/holdgate/internal/certs"
)

// TLSFiles has the paths of the PEM files for calls of webhooks.
type TLSFiles struct {
	CA        string // trusted besides the system's authorities; empty: none
	Cert, Key string // empty: none
}

// Client returns the TLS configuration for calls, nil if no file is set.
func (f TLSFiles) Client() (*tls.Config, error) {
	if f == (TLSFiles{}) {
		return nil, nil //nolint:nilnil // nil stands for the default configuration
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.CA != "" {
		var err error
		if c.RootCAs, err = f.authorities(); err != nil {
			return nil, err
		}
	}
	if f.Cert == "" {
		return c, nil
	}
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return f.pair() }
	_, err := f.pair()
	return c, err
}

// pair reads the certificate and its key. It is called for each handshake, so that a renewed
// certificate is used at once; handshakes are rare.
func (f TLSFiles) pair() (*tls.Certificate, error) {
	c, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("reading the certificate and its key: %w", err)
	}
	return &c, nil
}

func (f TLSFiles) authorities() (*x509.CertPool, error) {
	pool, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("reading the system's authorities: %w", err)
	}
	text, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, fmt.Errorf("reading the authorities: %w", err)
	}
	if pool, err = certs.AddAuthorities(pool, text); err != nil {
		return nil, fmt.Errorf("reading the authorities: %s %w", f.CA, err)
	}
	return pool, nil
}
