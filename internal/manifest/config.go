// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdgate/holdgate/internal/settings"
)

// The gateways for which there are manifests.
const (
	EnvoyGateway = "envoy-gateway"
	Istio        = "istio"
	AIGateway    = "ai-gateway"
	LLMD         = "llm-d"
)

// The destinations that a gateway can have.
const (
	Route    = "route"
	Endpoint = "endpoint"
)

const (
	// bodyHeadroom keeps a gateway's buffers above the body limit.
	bodyHeadroom = 1 << 20
	// idleHeadroom keeps the gateway's idle time limits above the longest hold.
	idleHeadroom = time.Minute
	maxBody      = 1 << 31
	maxHold      = 24 * time.Hour
	maxSocket    = 107
	// maxWindow is the largest flow-control window of HTTP/2.
	maxWindow = 1<<31 - 1
)

// Config is what differs from one gateway to another.
type Config struct {
	// For is the gateway: EnvoyGateway, Istio, AIGateway or LLMD.
	For string
	// Destination is how requests are sent on: Route or Endpoint. Empty is Endpoint for
	// LLMD and Route for the others.
	Destination string
	// Namespace is that of the gateway and its routes. All objects are put there.
	Namespace string
	// Gateway is the name of the Gateway, Route that of the HTTPRoute of the models.
	Gateway, Route string
	// ExtProc is where holdgate serve listens for Envoy: unix:///path or host:port.
	ExtProc string
	// TLSSecret is the name of a Secret with tls.crt and tls.key, the gateway's certificate
	// for Holdgate, and ca.crt, the authorities of Holdgate's certificate.
	TLSSecret string
	// Insecure allows an ExtProc that others can reach without a TLSSecret.
	Insecure bool
	// Engines are the engines' pods and their port, NAME:PORT: the name of their Service,
	// and the value of their label app.
	Engines string
	// Example adds objects that the user most likely has already: a Gateway and an
	// HTTPRoute.
	Example bool
	// MaxRequestBytes is the largest body that holdgate serve accepts, HoldMax the longest
	// hold.
	MaxRequestBytes int64
	HoldMax         time.Duration
}

// Gateways are the values of Config.For.
func Gateways() []string { return []string{EnvoyGateway, Istio, AIGateway, LLMD} }

// address is a parsed address of Holdgate: a unix socket's path, or a host and a port.
type address struct {
	Socket string
	Host   string
	Port   int
}

// IP reports whether the host is an IP address.
func (a address) IP() bool {
	_, err := netip.ParseAddr(a.Host)
	return err == nil
}

// Service returns the first label of the host: the name of the Service.
func (a address) Service() string {
	name, _, _ := strings.Cut(a.Host, ".")
	return name
}

// engines is a parsed Config.Engines.
type engines struct {
	Name string
	Port int
}

// view is what a template sees: checked values only.
type view struct {
	Config

	ExtProc address
	Engines engines
}

// Idle is the gateway's limit of idle streams, in seconds.
func (v view) Idle() int { return int((v.HoldMax + idleHeadroom + time.Second - 1) / time.Second) }

// Buffer is the size of the gateway's buffers, in bytes.
func (v view) Buffer() int64 { return v.MaxRequestBytes + bodyHeadroom }

// Window returns the flow-control window of a client's stream, in bytes: with HTTP/2 Envoy
// buffers no more of a request than that.
func (v view) Window() int64 { return min(v.Buffer(), maxWindow) }

// ConnectionWindow returns the window of a client's connection, for four streams.
func (v view) ConnectionWindow() int64 { return min(4*v.Buffer(), maxWindow) }

// SocketDir returns the directory of the unix socket.
func (v view) SocketDir() string { return path.Dir(v.ExtProc.Socket) }

// Clusters are the names of Envoy's clusters for Holdgate: of the filter and of the log.
func (v view) Clusters() []string { return []string{"holdgate", "holdgate_log"} }

// Picks reports whether Holdgate names the engine.
func (v view) Picks() bool { return v.Destination == Endpoint }

// AI reports whether the manifest is for Envoy AI Gateway.
func (v view) AI() bool { return v.For == AIGateway }

// BeforePicker reports whether Holdgate's filter stands before that of an endpoint picker.
func (v view) BeforePicker() bool { return v.For == LLMD }

// check returns the checked values of c, or settings.Problems by the names of the fields.
func (c Config) check() (view, error) {
	var p settings.Problems
	if !slices.Contains(Gateways(), c.For) {
		p.Add("For", "must be one of %s, is %q", strings.Join(Gateways(), ", "), c.For)
		return view{}, p
	}
	if c.Destination == "" {
		c.Destination = Route
		if c.For == LLMD {
			c.Destination = Endpoint
		}
	}
	v := view{Config: c}
	c.checkDestination(&p)
	c.checkNames(&p)
	extProc, err := parseExtProc(c.ExtProc)
	p.Check("ExtProc", err)
	v.ExtProc = extProc
	if err == nil {
		v.checkReach(&p)
	}
	if c.needsEngines() {
		e, err := parseEngines(c.Engines)
		p.Check("Engines", err)
		v.Engines = e
	} else if c.Engines != "" {
		p.Add("Engines", "is of no use here: nothing that is printed names engines")
	}
	c.checkNumbers(&p)
	return v, p.Err()
}

func (c Config) checkDestination(p *settings.Problems) {
	switch {
	case c.Destination != Route && c.Destination != Endpoint:
		p.Add("Destination", "must be route or endpoint, is %q: only the bootstrap of holdgate envoy render has what replica needs", c.Destination)
	case c.For == Istio && c.Destination == Endpoint:
		p.Add("Destination", "must be route: with Istio an endpoint is chosen through an InferencePool, see --for llm-d")
	case c.For == AIGateway && c.Destination == Endpoint:
		p.Add("Destination", "must be route: Envoy AI Gateway translates requests after Holdgate, for the backends that it knows")
	}
}

// pooled reports whether Holdgate is the endpoint picker of an InferencePool.
func (c Config) pooled() bool { return c.For == LLMD && c.Destination == Endpoint }

func (c Config) needsEngines() bool { return c.Example || c.pooled() }

func (c Config) checkNames(p *settings.Problems) {
	p.Check("Namespace", checkLabel(c.Namespace))
	if c.TLSSecret != "" {
		p.Check("TLSSecret", checkName(c.TLSSecret))
	}
	named := func(field, name string, used bool) {
		switch {
		case used:
			p.Check(field, checkName(name))
		case name != "":
			p.Add(field, "is of no use for %s with the destination %s", c.For, c.Destination)
		}
	}
	named("Gateway", c.Gateway, !c.pooled() || c.Example)
	named("Route", c.Route, c.For == EnvoyGateway || c.For == AIGateway || c.Example)
	if c.Example && c.For == AIGateway {
		p.Add("Example", "there is none for ai-gateway: its AIGatewayRoute makes the HTTPRoute")
	}
}

// checkReach checks that Holdgate is reached in a way that the gateway has.
func (v view) checkReach(p *settings.Problems) {
	e := v.ExtProc
	switch {
	case e.Socket != "" && v.pooled():
		p.Add("ExtProc", "must be a Service in the namespace of the pool, such as holdgate.%s.svc.cluster.local:9001, is a unix socket", v.Namespace)
	case e.Socket != "" && v.TLSSecret != "":
		p.Add("TLSSecret", "is of no use with a unix socket")
	case e.Socket != "":
	case e.IP() && (v.TLSSecret != "" || v.pooled()):
		p.Add("ExtProc", "must be a name, is the IP address %s", e.Host)
	case v.pooled() && !strings.HasPrefix(e.Host, e.Service()+"."+v.Namespace+".svc."):
		p.Add("ExtProc", "must be a Service in the namespace of the pool, such as holdgate.%s.svc.cluster.local:9001, is %q", v.Namespace, e.Host)
	case v.TLSSecret == "" && !v.Insecure:
		p.Add("TLSSecret", "is required: anyone who can reach %s would see requests and keys, or could send Holdgate their own. --extproc-insecure allows that", e.Host)
	}
}

func (c Config) checkNumbers(p *settings.Problems) {
	if c.MaxRequestBytes < 1 || c.MaxRequestBytes > maxBody {
		p.Add("MaxRequestBytes", "must be between 1 and %d, is %d", int64(maxBody), c.MaxRequestBytes)
	}
	if c.HoldMax <= 0 || c.HoldMax > maxHold {
		p.Add("HoldMax", "must be above 0 and at most %v, is %v", maxHold, c.HoldMax)
	}
}

var (
	// label is a label of RFC 1123, as names of namespaces and Services are.
	label = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	// digits is a name that YAML could read as a number or a date.
	digits = regexp.MustCompile(`^[0-9][-.0-9e]*$|^0[xob][0-9a-f]+$`)
)

// words are names that some readers of YAML take for something else than a string.
var words = []string{"true", "false", "null", "yes", "no", "on", "off", "y", "n"}

func checkLabel(s string) error {
	switch {
	case s == "":
		return errors.New("is required")
	case !label.MatchString(s):
		return fmt.Errorf("must be a DNS label (RFC 1123): up to 63 of a-z, 0-9 and -, is %q", s)
	case digits.MatchString(s) || slices.Contains(words, s):
		return fmt.Errorf("is a word or number of YAML, which would need quotes everywhere: %q", s)
	}
	return nil
}

// checkName checks the name of an object: labels with dots between them.
func checkName(s string) error {
	switch {
	case s == "":
		return errors.New("is required")
	case len(s) > 253 || slices.ContainsFunc(strings.Split(s, "."), func(l string) bool { return !label.MatchString(l) }):
		return fmt.Errorf("must be a DNS name (RFC 1123): a-z, 0-9, - and ., is %q", s)
	case digits.MatchString(s) || slices.Contains(words, s):
		return fmt.Errorf("is a word or number of YAML, which would need quotes everywhere: %q", s)
	}
	return nil
}

func parsePort(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("must have a port between 1 and 65535, is %q", s)
	}
	return int(n), nil
}

var socketPath = regexp.MustCompile(`^(/[A-Za-z0-9][-A-Za-z0-9._]*)+$`)

func parseExtProc(s string) (address, error) {
	if s == "" {
		return address{}, errors.New("is required: where holdgate serve listens for Envoy, unix:///path or host:port")
	}
	if file, ok := strings.CutPrefix(s, "unix://"); ok {
		if !socketPath.MatchString(file) || len(file) > maxSocket {
			return address{}, fmt.Errorf("must be an absolute path of at most %d letters, digits and -._/, is %q", maxSocket, file)
		}
		return address{Socket: file}, nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return address{}, fmt.Errorf("must be unix:///path or host:port, is %q", s)
	}
	n, err := parsePort(port)
	if err != nil {
		return address{}, err
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.Zone() == "" {
		return address{Host: ip.Unmap().String(), Port: n}, nil
	}
	if err := checkName(host); err != nil {
		return address{}, err
	}
	return address{Host: host, Port: n}, nil
}

func parseEngines(s string) (engines, error) {
	name, port, found := strings.Cut(s, ":")
	if !found {
		return engines{}, fmt.Errorf("must be NAME:PORT, the Service and port of the engines, is %q", s)
	}
	if err := checkLabel(name); err != nil {
		return engines{}, err
	}
	n, err := parsePort(port)
	return engines{Name: name, Port: n}, err
}
