// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/holdgate/holdgate/agentreg/protocol"
	"github.com/holdgate/holdgate/internal/unixsocket"
)

// Defaults of a Config.
const (
	DefaultStopGrace   = 10 * time.Second
	DefaultWakeTimeout = 5 * time.Minute
	// DefaultUnhealthyAfter is how many failed checks in a row take an engine out of
	// routing.
	DefaultUnhealthyAfter = 3
	// DefaultDrainTimeout is the default of the command. A Config with 0 does not wait for
	// requests.
	DefaultDrainTimeout = 30 * time.Second
)

// Config has the settings of an agent: its routers and its engine. The method settings
// returns the table of its flags and keys.
type Config struct {
	// Routers are host:port or unix:///path. The agent connects to every address of a
	// host.
	Routers []string
	// Token returns the token for the routers. It is called for each connection; nil for
	// no token.
	Token func() (string, error)
	TLS   TLS
	// ID is the agent's id, which must be unique among the agents of a router.
	ID string
	// Engine is one of engines.Names.
	Engine string
	// BackendURL is where the engine listens, as http://host:port. The host 0.0.0.0
	// stands for the address from which this agent connects to the routers; health
	// checks then go to the loopback address.
	BackendURL string
	// HealthPath is the path that answers 2xx when the engine can serve; empty for the
	// usual one of the engine.
	HealthPath string
	// UnhealthyAfter is how many failed checks in a row take the engine out of routing; 0
	// means DefaultUnhealthyAfter.
	UnhealthyAfter int
	// Warmup: the engine must answer a chat completion of one token before it is
	// registered. If nil, it must if it is an engine that needs warming up.
	Warmup *bool
	// Models and Kinds are what the engine serves. Without models the agent uses those
	// that the running engine lists, without kinds the usual kind of the engine.
	Models []string
	Kinds  []string
	// Slots is how many requests the engine takes at once.
	Slots int
	// Host is the Host header of requests to the engine; empty for the host of BackendURL.
	Host string
	// The next three are for RunBackend. BackendTLS is for requests to an https backend.
	// Pool: BackendURL is a load balancer, so that all its addresses lead to the same
	// engines. HealthModel: the backend is healthy only while it lists its models.
	BackendTLS  *tls.Config
	Pool        bool
	HealthModel bool
	// APIKey is sent to the engine as a bearer token; empty for none.
	APIKey string
	// Begun is called once when Run has begun its work; nil for no call. Settings that are
	// wrong end Run before.
	Begun func()
	// Region and Labels are sent to the routers. Both may be empty.
	Region string
	Labels map[string]string

	// Exec is the command that starts the engine; empty if the agent does not start it.
	// Env is added to this process's environment, Dir is its working directory.
	Exec []string
	Env  []string
	Dir  string
	// Ports chooses a loopback port for the engine, which replaces BackendURL and each
	// {port} in Exec and Env. nil: the engine listens at BackendURL.
	Ports *Ports
	// Stdout and Stderr receive the engine's output line by line, each with the agent's id
	// in front; nil discards it.
	Stdout, Stderr io.Writer
	// IdleTimeout is how long the engine may be idle before it is stopped; 0: it never is.
	IdleTimeout time.Duration
	// MinUpTime is the shortest time that the engine serves before it is stopped.
	MinUpTime time.Duration
	// Group is the group of agents that the engine shares room with.
	Group Group
	// WakeTimeout is how long the engine may take to become ready; 0 means
	// DefaultWakeTimeout.
	WakeTimeout time.Duration
	// StopGrace is the time between SIGTERM and SIGKILL of the engine; 0 means
	// DefaultStopGrace.
	StopGrace time.Duration
	// DrainTimeout is how long running requests may take when the agent shuts down; 0: it
	// does not wait for them.
	DrainTimeout time.Duration

	// HTTPClient sends the requests to the engine; if nil the agent makes one.
	HTTPClient *http.Client
	Log        zerolog.Logger

	// dial, if set, connects to the routers in place of the network.
	dial func(address string) (net.Conn, error)
	// roundTrip replaces the network between the agent and its engine in tests.
	roundTrip func(at netip.AddrPort, r *http.Request) (*http.Response, error)
	// lookup replaces the resolver in tests.
	lookup func(ctx context.Context, host string) ([]netip.Addr, error)
}

// withDefaults returns c with the defaults of the fields that are not set.
func (c Config) withDefaults() Config {
	if c.HealthPath == "" {
		c.HealthPath = c.engine().Health
	}
	if len(c.Kinds) == 0 && len(c.Models) > 0 {
		c.Kinds = []string{c.engine().Kinds[0].String()}
	}
	if c.UnhealthyAfter == 0 {
		c.UnhealthyAfter = DefaultUnhealthyAfter
	}
	if c.WakeTimeout == 0 {
		c.WakeTimeout = DefaultWakeTimeout
	}
	if c.StopGrace == 0 {
		c.StopGrace = DefaultStopGrace
	}
	return c
}

func checkRouter(r string, tls bool) error {
	if path, ok := strings.CutPrefix(r, "unix://"); ok {
		if !strings.HasPrefix(path, "/") {
			return fmt.Errorf("%q must have the form unix:///path", r)
		}
		return unixsocket.CheckPath(path)
	}
	host, port, err := net.SplitHostPort(r)
	if err != nil || host == "" {
		return fmt.Errorf("must be host:port or unix:///path, is %q", r)
	}
	if err := checkPort(port); err != nil {
		return fmt.Errorf("%q: %w", r, err)
	}
	if ip, err := netip.ParseAddr(host); err == nil && !tls && !ip.IsLoopback() {
		return errNeedsTLS(ip)
	}
	return nil
}

var errTLS = errors.New("without --tls or --tls-ca-file only loopback addresses and unix sockets are allowed")

func errNeedsTLS(ip netip.Addr) error {
	return fmt.Errorf("%s is not on this machine: %w", ip, errTLS)
}

func checkPort(port string) error {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return fmt.Errorf("the port must be between 1 and 65535, is %q", port)
	}
	return nil
}

// parseBackend parses a BackendURL. The result always has a port.
func parseBackend(s string) (*url.URL, error) {
	if s == "" {
		return nil, errors.New("is required")
	}
	u, err := url.Parse(s)
	switch {
	case err != nil, u.Scheme != "http", u.Hostname() == "":
		return nil, fmt.Errorf("must be http://host:port, is %q", s)
	case u.Path != "" && u.Path != "/", u.RawQuery != "", u.Fragment != "", u.User != nil:
		return nil, fmt.Errorf("must have nothing but scheme, host and port, is %q", s)
	}
	u.Path = ""
	return ensurePort(u)
}

// ensurePort adds the default port if u has none, and checks the port.
func ensurePort(u *url.URL) (*url.URL, error) {
	if u.Port() == "" {
		port := "80"
		if u.Scheme == "https" {
			port = "443"
		}
		u.Host = net.JoinHostPort(u.Hostname(), port)
	}
	return u, checkPort(u.Port())
}

// prefixForm is a path that engines, proxies and Envoy read in the same way.
var prefixForm = regexp.MustCompile(`^(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*$`)

// parseRemote parses the URL of a backend without an agent. It may be https, and may have a
// path that goes in front of the paths of requests. The result always has a port, and no
// slash at the end of the path.
func parseRemote(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err == nil && u.Scheme == unixScheme {
		return parsePoolLane(u, s)
	}
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return nil, fmt.Errorf("must be http://host:port or https://host:port, with or without a path, is %q", s)
	}
	u.Path = strings.TrimSuffix(u.Path, "/")
	switch {
	case u.RawQuery != "", u.Fragment != "", u.User != nil:
		return nil, fmt.Errorf("must have nothing but scheme, host, port and path, is %q", s)
	case strings.HasSuffix(u.Path, "/v1"):
		return nil, fmt.Errorf("must not end in /v1: the paths of requests begin with it, is %q", s)
	case u.RawPath != "" || !prefixForm.MatchString(u.Path):
		return nil, fmt.Errorf("must have a path of letters, digits and ._~- alone, is %q", s)
	}
	return ensurePort(u)
}

const unixScheme = "unix"

// parsePoolLane parses the URL of the lane of a pool, a unix socket.
func parsePoolLane(u *url.URL, s string) (*url.URL, error) {
	if u.Host != "" || u.RawQuery != "" || u.Fragment != "" || u.RawPath != "" || !filepath.IsAbs(u.Path) || protocol.PoolOf(u.Path) == "" {
		return nil, fmt.Errorf("must be unix:///path/pool-NAME.sock, the lane of a pool, is %q", s)
	}
	return u, unixsocket.CheckPath(u.Path)
}

// PoolLane returns the name of the pool whose lane the BackendURL is, empty for another URL.
func (c *Config) PoolLane() string {
	path, found := strings.CutPrefix(c.BackendURL, unixScheme+"://")
	if !found {
		return ""
	}
	return protocol.PoolOf(path)
}
