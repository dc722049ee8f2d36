// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/holdgate/holdgate/internal/settings"
)

// The names of the sockets in LanesDir.
const (
	ExtProcSocket = "extproc.sock"
	ReholdSocket  = "rehold.sock"
	RelaySocket   = "relay.sock"
	AdminSocket   = "envoy.sock"
)

// The defaults for fields of Config.
const (
	DefaultMaxRequestBytes = 10 << 20
	DefaultHoldMax         = time.Hour
	DefaultHeapBytes       = 2 << 30
)

const (
	// bodyHeadroom keeps Envoy's retry buffer above the body limit. Without it, a retry
	// of the largest accepted body is answered with 507.
	bodyHeadroom = 1 << 20
	// idleHeadroom keeps stream_idle_timeout above the longest hold.
	idleHeadroom = time.Minute
	// maxRequestBytes plus bodyHeadroom fits into the uint32 that Envoy reads.
	maxRequestBytes = 1 << 31
	minHeapBytes    = 64 << 20
	maxHold         = 24 * time.Hour
	maxTrustedHops  = 16
	// maxSocketPath is the size of sun_path without the terminating zero byte.
	maxSocketPath = 107
)

// Config is the input from which a bootstrap is rendered.
type Config struct {
	// EdgeListen is the ip:port that clients connect to. Port 0 is allowed.
	EdgeListen string
	// AdminListen is where Envoy's admin interface listens: unix:///path or ip:port.
	// Empty means envoy.sock in LanesDir. Anything that can connect to the interface
	// can stop Envoy, and web pages can connect to a loopback port too.
	AdminListen string
	// ExtProc is where holdgate serve listens: unix:///path or host:port. Empty means
	// extproc.sock in LanesDir.
	ExtProc string
	// LanesDir is the absolute directory of rehold.sock and relay.sock.
	LanesDir string
	// MaxRequestBytes is the largest body that holdgate serve accepts.
	MaxRequestBytes int64
	// HoldMax is the longest hold.
	HoldMax time.Duration
	// HeapBytes is the heap size at which Envoy's overload manager starts to refuse
	// requests.
	HeapBytes uint64
	// EdgeCertFile and EdgeKeyFile are the absolute paths of the edge's certificate and
	// its key. Without them the edge uses plain text.
	EdgeCertFile, EdgeKeyFile string
	// ExtProcCertFile, ExtProcKeyFile and ExtProcCAFile are the absolute paths of
	// Envoy's client certificate for Holdgate, its key, and the CA of Holdgate's
	// certificate. They are required when ExtProc is reachable from other machines,
	// unless ExtProcInsecure is set.
	ExtProcCertFile, ExtProcKeyFile, ExtProcCAFile string
	ExtProcInsecure                                bool
	// SecretsDir is the absolute directory of the files that Secrets returns. It is
	// required with certificates.
	SecretsDir string
	// IdentityMetadata is where other filters put the identity of the caller, see
	// IdentityPath. Empty means that there is none.
	IdentityMetadata string
	// TrustedHops is the number of proxies in front that append the address of their
	// peer to x-forwarded-for. 0 means that the peer is the client.
	TrustedHops int
	// ProxyProtocol means that each connection begins with a PROXY header with the
	// client's address.
	ProxyProtocol bool
	// BackendCAs are the CAs of backends over TLS: absolute paths of PEM files, or
	// SystemCA.
	BackendCAs []string
	// Pools are the endpoint pickers behind Holdgate in this Envoy, as NAME=ADDRESS, where
	// ADDRESS is unix:///path, host:port, or https://host:port for TLS. The backend whose URL is the socket
	// pool-NAME.sock in LanesDir sends its requests through the picker's lane.
	Pools []string
	// PoolCAFile has the CAs of pickers at https://, as an absolute path of a PEM file, or
	// SystemCA. Without it their certificates are not checked.
	PoolCAFile string
	// PoolInsecure allows pickers at addresses that others can reach, without TLS or with
	// certificates that are not checked.
	PoolInsecure bool
}

// forwarded reports whether the client's address comes from a proxy in front.
func (c Config) forwarded() bool { return c.TrustedHops > 0 || c.ProxyProtocol }

// withDefaults returns c with defaults for empty fields.
func (c Config) withDefaults() Config {
	if c.AdminListen == "" {
		c.AdminListen = "unix://" + filepath.Join(c.LanesDir, AdminSocket)
	}
	if c.ExtProc == "" {
		c.ExtProc = "unix://" + filepath.Join(c.LanesDir, ExtProcSocket)
	}
	if c.MaxRequestBytes == 0 {
		c.MaxRequestBytes = DefaultMaxRequestBytes
	}
	if c.HoldMax == 0 {
		c.HoldMax = DefaultHoldMax
	}
	if c.HeapBytes == 0 {
		c.HeapBytes = DefaultHeapBytes
	}
	return c
}

// endpoint is an address that Envoy listens on or connects to: a unix socket, or a host
// and port. The host may be a name only where Envoy connects.
type endpoint struct {
	pipe string
	host string
	port uint32
}

// addresses are the parsed text fields of a Config.
type addresses struct {
	edge, admin, extProc, rehold, relay endpoint

	pools []pool
}

// parse checks every field and returns all problems at once, as settings.Problems by
// the fields' names. It expects a Config with its defaults filled in.
func (c Config) parse() (addresses, error) {
	var (
		a addresses
		p settings.Problems
	)
	take := func(field string, e endpoint, err error) endpoint {
		p.Check(field, err)
		return e
	}
	edge, err := parseListen(c.EdgeListen)
	a.edge = take("EdgeListen", edge, err)
	lanes := checkLanesDir(c.LanesDir)
	// Errors of sockets below a bad LanesDir would only repeat that error.
	if lanes == nil || !strings.HasPrefix(c.AdminListen, "unix://") {
		admin, err := parseAdmin(c.AdminListen)
		a.admin = take("AdminListen", admin, err)
	}
	p.Check("LanesDir", lanes)
	if lanes == nil {
		a.rehold.pipe = filepath.Join(c.LanesDir, ReholdSocket)
		a.relay.pipe = filepath.Join(c.LanesDir, RelaySocket)
		extProc, err := parseTarget(c.ExtProc)
		a.extProc = take("ExtProc", extProc, err)
		c.checkTLS(&p, a.extProc)
		a.pools = c.parsePools(&p)
		if c.PoolCAFile != "" {
			p.Check("PoolCAFile", checkCA(c.PoolCAFile))
		}
	}
	if c.IdentityMetadata != "" {
		_, err := IdentityPath(c.IdentityMetadata)
		p.Check("IdentityMetadata", err)
	}
	for _, ca := range c.BackendCAs {
		p.Check("BackendCAs", checkCA(ca))
	}
	c.checkNumbers(&p)
	return a, p.Err()
}

func (c Config) checkNumbers(p *settings.Problems) {
	if c.MaxRequestBytes < 1 || c.MaxRequestBytes > maxRequestBytes {
		p.Add("MaxRequestBytes", "must be between 1 and %d, is %d", maxRequestBytes, c.MaxRequestBytes)
	}
	if c.HoldMax <= 0 || c.HoldMax > maxHold {
		p.Add("HoldMax", "must be above 0 and at most %v, is %v", maxHold, c.HoldMax)
	}
	if c.TrustedHops < 0 || c.TrustedHops > maxTrustedHops {
		p.Add("TrustedHops", "must be between 0 and %d, is %d", maxTrustedHops, c.TrustedHops)
	}
	if c.TrustedHops > 0 && c.ProxyProtocol {
		p.Add("TrustedHops", "the PROXY protocol names the client already: use one of the two")
	}
	if c.HeapBytes < minHeapBytes {
		p.Add("HeapBytes", "must be at least %d (64 MiB), is %d", minHeapBytes, c.HeapBytes)
	}
}

// parseListen parses an address to listen on. Envoy binds to IP addresses, not to
// names.
func parseListen(s string) (endpoint, error) {
	if s == "" {
		return endpoint{}, errors.New("is required, for example 0.0.0.0:8080")
	}
	ap, err := netip.ParseAddrPort(s)
	if err != nil {
		return endpoint{}, fmt.Errorf("must be an IP address and a port, for example 0.0.0.0:8080 or [::]:8080, is %q", s)
	}
	if ap.Addr().Zone() != "" {
		return endpoint{}, fmt.Errorf("must have no zone, is %q", s)
	}
	return endpoint{host: ap.Addr().Unmap().String(), port: uint32(ap.Port())}, nil
}

// parseAdmin parses the address of the admin interface.
func parseAdmin(s string) (endpoint, error) {
	if path, ok := strings.CutPrefix(s, "unix://"); ok {
		return parsePipe(path)
	}
	return parseListen(s)
}

func parsePipe(path string) (endpoint, error) {
	if err := checkPath(path); err != nil {
		return endpoint{}, err
	}
	if len(path) > maxSocketPath {
		return endpoint{}, fmt.Errorf("a unix socket's path has at most %d bytes, this one has %d", maxSocketPath, len(path))
	}
	return endpoint{pipe: path}, nil
}

// parseTarget parses an address to connect to.
func parseTarget(s string) (endpoint, error) {
	if path, ok := strings.CutPrefix(s, "unix://"); ok {
		return parsePipe(path)
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil || !validHost(host) {
		return endpoint{}, fmt.Errorf("must be unix:///path or host:port, is %q", s)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return endpoint{}, fmt.Errorf("must have a port between 1 and 65535, is %q", s)
	}
	return endpoint{host: host, port: uint32(n)}, nil
}

// validHost reports whether host is an IP address or has only the characters of a DNS
// name.
func validHost(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._"
	return host != "" && len(host) <= 253 && strings.Trim(host, letters) == ""
}

func checkLanesDir(dir string) error {
	if dir == "" {
		return errors.New("is required: the directory of rehold.sock and relay.sock")
	}
	if err := checkPath(dir); err != nil {
		return err
	}
	if n := len(filepath.Join(dir, ExtProcSocket)); n > maxSocketPath {
		return fmt.Errorf("is too long for a unix socket: %d bytes with the socket's name, at most %d", n, maxSocketPath)
	}
	return nil
}

func checkPath(path string) error {
	switch {
	case !filepath.IsAbs(path):
		return fmt.Errorf("must be an absolute path, is %q", path)
	case !utf8.ValidString(path) || strings.ContainsRune(path, 0):
		return fmt.Errorf("must be UTF-8 without zero bytes, is %q", path)
	}
	return nil
}

// isIP reports whether the host is an IP address, so that Envoy need not resolve it.
func (e endpoint) isIP() bool {
	_, err := netip.ParseAddr(e.host)
	return err == nil
}
