// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"errors"
	"net/netip"
	"path/filepath"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdgate/holdgate/internal/settings"
)

// The secrets that Envoy reads from separate files. It would read certificates in a
// static bootstrap only once.
const (
	edgeSecret      = "edge-tls"
	extProcSecret   = "extproc-tls" //nolint:gosec // the name of a file, not a secret
	extProcCASecret = "extproc-ca"  //nolint:gosec // the name of a file, not a secret
)

const tlsSocket = "envoy.transport_sockets.tls"

// Secrets returns the files that a bootstrap of c with TLS needs in SecretsDir, by
// name. They contain no secret themselves: they name the certificate files, which Envoy
// reads again when one is replaced by a rename.
func Secrets(c Config) (map[string][]byte, error) {
	r := &renderer{}
	files := map[string][]byte{}
	add := func(name string, s *tlsv3.Secret) error {
		s.Name = name
		response := &discoveryv3.DiscoveryResponse{Resources: []*anypb.Any{r.pack(s)}}
		text, err := encode(response, "# Which files Envoy reads a certificate from.\n")
		files[name+".yaml"] = text
		return err
	}
	var errs []error
	if c.EdgeCertFile != "" {
		errs = append(errs, add(edgeSecret, certificate(c.EdgeCertFile, c.EdgeKeyFile)))
	}
	if c.ExtProcCertFile != "" {
		ca := &tlsv3.Secret{Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: inFile(c.ExtProcCAFile)}}}
		errs = append(errs, add(extProcSecret, certificate(c.ExtProcCertFile, c.ExtProcKeyFile)), add(extProcCASecret, ca))
	}
	return files, errors.Join(append(errs, r.errs...)...)
}

func certificate(cert, key string) *tlsv3.Secret {
	return &tlsv3.Secret{Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
		CertificateChain: inFile(cert), PrivateKey: inFile(key),
	}}}
}

func inFile(path string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path}}
}

func (r *renderer) secret(name string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{
		Name: name,
		SdsConfig: &corev3.ConfigSource{
			ResourceApiVersion: corev3.ApiVersion_V3,
			ConfigSourceSpecifier: &corev3.ConfigSource_PathConfigSource{PathConfigSource: &corev3.PathConfigSource{
				Path: filepath.Join(r.config.SecretsDir, name+".yaml"),
			}},
		},
	}
}

// edgeTLS returns the TLS settings of the edge, nil for plain text.
func (r *renderer) edgeTLS() *corev3.TransportSocket {
	if r.config.EdgeCertFile == "" {
		return nil
	}
	return r.tls(&tlsv3.DownstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
		AlpnProtocols:                  []string{"h2", "http/1.1"},
		TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{r.secret(edgeSecret)},
	}})
}

// extProcTLS returns TLS settings that present a client certificate and require a
// server certificate for the host in ExtProc. It returns nil for plain text.
func (r *renderer) extProcTLS() *corev3.TransportSocket {
	if r.config.ExtProcCertFile == "" {
		return nil
	}
	sni, name := r.addresses.extProc.serverName()
	return r.tls(&tlsv3.UpstreamTlsContext{
		Sni: sni,
		CommonTlsContext: &tlsv3.CommonTlsContext{
			AlpnProtocols: []string{"h2"},
			// Envoy's default maximum as a client is 1.2.
			TlsParams: &tlsv3.TlsParameters{
				TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_3, TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3,
			},
			TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{r.secret(extProcSecret)},
			ValidationContextType: &tlsv3.CommonTlsContext_CombinedValidationContext{
				CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
					DefaultValidationContext: &tlsv3.CertificateValidationContext{
						MatchTypedSubjectAltNames: []*tlsv3.SubjectAltNameMatcher{name},
					},
					ValidationContextSdsSecretConfig: r.secret(extProcCASecret),
				},
			},
		},
	})
}

// serverName returns the name to ask a server for, empty for an IP address, and the one that
// its certificate must have.
func (e endpoint) serverName() (sni string, name *tlsv3.SubjectAltNameMatcher) {
	name = &tlsv3.SubjectAltNameMatcher{
		SanType: tlsv3.SubjectAltNameMatcher_DNS,
		Matcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: e.host}},
	}
	if e.isIP() {
		name.SanType = tlsv3.SubjectAltNameMatcher_IP_ADDRESS
		return "", name
	}
	return e.host, name
}

// node returns a node name, which Envoy requires before it reads secrets from files.
func (r *renderer) node() *corev3.Node {
	if r.config.SecretsDir == "" {
		return nil
	}
	return &corev3.Node{Id: "holdgate", Cluster: "holdgate"}
}

func (r *renderer) tls(m proto.Message) *corev3.TransportSocket {
	return &corev3.TransportSocket{Name: tlsSocket, ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: r.pack(m)}}
}

// checkTLS finds missing files, relative paths, and a connection to Holdgate that
// others could reach without TLS.
func (c Config) checkTLS(p *settings.Problems, extProc endpoint) {
	// The files of one certificate are given together or not at all.
	together := func(files ...[2]string) {
		if !slices.ContainsFunc(files, func(f [2]string) bool { return f[1] != "" }) {
			return
		}
		for _, f := range files {
			if f[1] == "" {
				p.Add(f[0], "is required: it goes with the other files of the certificate")
			} else {
				p.Check(f[0], checkPath(f[1]))
			}
		}
	}
	together([2]string{"EdgeCertFile", c.EdgeCertFile}, [2]string{"EdgeKeyFile", c.EdgeKeyFile})
	together([2]string{"ExtProcCertFile", c.ExtProcCertFile}, [2]string{"ExtProcKeyFile", c.ExtProcKeyFile}, [2]string{"ExtProcCAFile", c.ExtProcCAFile})
	if c.EdgeCertFile != "" || c.ExtProcCertFile != "" {
		p.Check("SecretsDir", checkPath(c.SecretsDir))
	}
	switch {
	case c.ExtProcCertFile != "" && extProc.pipe != "":
		p.Add("ExtProcCertFile", "goes with a host:port: there is no TLS on a unix socket")
	case c.ExtProcCertFile == "" && !c.ExtProcInsecure && extProc.host != "" && !loopback(extProc.host):
		p.Add("ExtProc", "is an address that others can reach: name the certificate, the key and the authorities of its TLS, or use a loopback address or a unix socket")
	}
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}
