// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"os"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/holdgate/holdgate/internal/certs"
	"github.com/holdgate/holdgate/internal/settings"
)

// TLS has the settings of TLS with the routers. The zero value is plain text. The files are
// read for each connection, so that they can be replaced while the agent runs.
type TLS struct {
	// On turns TLS on. So does a CAFile.
	On bool
	// CAFile is the file with the authorities of the routers' certificates; empty for the
	// system's.
	CAFile string
	// CertFile and KeyFile are the agent's own certificate and key; empty for none.
	CertFile, KeyFile string
	// ServerName is the name that the routers' certificates must have; empty for the host
	// of the router's address.
	ServerName string
}

func (t TLS) enabled() bool { return t.On || t.CAFile != "" }

func (t TLS) check(p *settings.Problems) {
	before := len(*p)
	for _, f := range []struct{ flag, value string }{
		{"--tls-cert-file", t.CertFile}, {"--tls-key-file", t.KeyFile}, {"--tls-server-name", t.ServerName},
	} {
		if f.value != "" && !t.enabled() {
			p.Add(f.flag, "needs --tls or --tls-ca-file")
		}
	}
	switch {
	case t.CertFile != "" && t.KeyFile == "":
		p.Add("--tls-cert-file", "goes with --tls-key-file")
	case t.CertFile == "" && t.KeyFile != "":
		p.Add("--tls-key-file", "goes with --tls-cert-file")
	}
	if len(*p) > before || !t.enabled() {
		return
	}
	_, err := t.config("")
	p.Check("", err) // it names the flag
}

// config reads the files and returns the configuration for a connection to host.
func (t TLS) config(host string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS13, ServerName: cmp.Or(t.ServerName, host)}
	if t.CAFile != "" {
		text, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("--tls-ca-file: reading the authorities: %w", err)
		}
		if c.RootCAs, err = certs.Authorities(text); err != nil {
			return nil, fmt.Errorf("--tls-ca-file: reading the authorities: %s %w", t.CAFile, err)
		}
	}
	if t.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("--tls-cert-file: reading the certificate and its key: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// credentials returns the credentials for a connection to host.
func (t TLS) credentials(host string) (credentials.TransportCredentials, error) {
	if !t.enabled() {
		return insecure.NewCredentials(), nil
	}
	c, err := t.config(host)
	if err != nil {
		return nil, err
	}
	return credentials.NewTLS(c), nil
}
