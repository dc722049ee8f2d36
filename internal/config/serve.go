// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/internal/backend"
)

// Serve is what holdgate serve runs with. Its flags and the keys of its file have
// the same names.
type Serve struct {
	SiteID        string
	ExtProcListen string
	AgentsListen  string
	AdminListen   string
	Relay         string
	EnvoyAdmin    []string
	PortsFile     string

	ExtProcTLSCertFile  string
	ExtProcTLSKeyFile   string
	ExtProcClientCAFile string
	ExtProcInsecure     bool

	AdminTokenFile string
	MapFile        string
	MapWait        time.Duration
	HintsFreshFor  time.Duration
	HopSecretFile  string
	CORSOrigins    []string
	AuthFile       string
	EngineAuthFile string
	PolicyFile     string

	AgentsTokenFile    string
	AgentsTLSCertFile  string
	AgentsTLSKeyFile   string
	AgentsClientCAFile string
	AgentsAllowCIDR    []string
	AgentsReflection   bool
	AgentLiveness      time.Duration

	IdentityMetadata     string
	ForwardAuthorization bool

	KEDAListen         string
	KEDATLSCertFile    string
	KEDATLSKeyFile     string
	WebhookHeadersFile string
	WebhookCAFile      string
	WebhookCertFile    string
	WebhookKeyFile     string

	AuditFile    string
	AuditMaxSize Bytes
	AuditBackups int

	WakeHoldBudget    time.Duration
	WakeHoldMax       int
	WakeHoldMaxPerKey int
	WakeHoldMaxTotal  int
	WakeHoldMaxBytes  Bytes
	// WakeHoldMaxBytesPerModel is as it was given; see HoldBytesPerModel.
	WakeHoldMaxBytesPerModel Bytes
	WakeKeepalive            time.Duration
	WakeLinger               time.Duration
	WakeLateError            string
	WakeOrder                string
	WakeCooldown             time.Duration

	QueueDepth        int
	RequestTimeout    time.Duration
	AdmitParkTimeout  time.Duration
	RegistryGrace     time.Duration
	GroupGrace        time.Duration
	DrainTimeout      time.Duration
	MaxRequestBytes   Bytes
	MaxBodyBytesTotal Bytes
	RelayMaxBytes     Bytes

	MetricsPrefix string
	MetricsKeep   time.Duration
	LogFormat     string
	LogLevel      string

	// Backends are in the file alone: no flag could say as much.
	Backends []backend.Config
}

// MaxHoldBudget is the longest hold that a flag or a placement may ask for.
const MaxHoldBudget = time.Hour

// Flags declares every flag with its default.
func (c *Serve) Flags(f *pflag.FlagSet) {
	f.StringVar(&c.SiteID, "site-id", "", "this site's name in the sibling map; without it only models of backends are held")
	f.StringVar(&c.ExtProcListen, "extproc-listen", "unix:///run/holdgate/extproc.sock", "where Envoy connects: unix:///path or host:port")
	f.StringVar(&c.AgentsListen, "agents-listen", "127.0.0.1:9002", "where agents register: host:port or unix:///path")
	f.StringVar(&c.AdminListen, "admin-listen", "127.0.0.1:9003", "where metrics, health and the map API are: host:port or unix:///path")
	f.StringVar(&c.Relay, "relay", "unix:///run/holdgate/relay.sock", "Envoy's relay lane: unix:///path or host:port")
	f.StringSliceVar(&c.EnvoyAdmin, "envoy-admin", nil, "admin interfaces of all Envoys that connect here, http://host:port or unix:///path: their counts correct what lost access-log records left")
	f.StringVar(&c.PortsFile, "ports-file", "", "write the addresses in use to this file, as JSON, when ready")

	f.StringVar(&c.ExtProcTLSCertFile, "extproc-tls-cert-file", "", "certificate of the port that Envoy connects to; required unless --extproc-listen is a loopback address or a unix socket")
	f.StringVar(&c.ExtProcTLSKeyFile, "extproc-tls-key-file", "", "key of that certificate")
	f.StringVar(&c.ExtProcClientCAFile, "extproc-client-ca-file", "", "authorities of Envoys' certificates: each connection needs one")
	f.BoolVar(&c.ExtProcInsecure, "extproc-insecure", false, "allow --extproc-listen and --relay on TCP addresses that others can reach, without TLS: whoever reaches the first calls without a key, as any tenant and any identity, and learns the engines' keys; whoever reaches the second sends requests to any address")
	f.StringVar(&c.AdminTokenFile, "admin-token-file", "", "bearer token of the admin API; required unless --admin-listen is a loopback address")
	f.StringVar(&c.AgentsTokenFile, "agents-token-file", "", "bearer tokens that agents may use, one a line")
	f.StringVar(&c.AgentsTLSCertFile, "agents-tls-cert-file", "", "certificate of the agents' port; required unless --agents-listen is a loopback address or a unix socket")
	f.StringVar(&c.AgentsTLSKeyFile, "agents-tls-key-file", "", "key of that certificate")
	f.StringVar(&c.AgentsClientCAFile, "agents-client-ca-file", "", "authorities of agents' certificates: each connection needs one, and a token only with --agents-token-file")
	f.StringSliceVar(&c.AgentsAllowCIDR, "agents-allow-cidr", nil, "networks in which agents may name an address that is not their own")
	f.BoolVar(&c.AgentsReflection, "agents-reflection", false, "let gRPC tools ask the agents' port what it offers")
	f.DurationVar(&c.AgentLiveness, "agent-liveness", 15*time.Second, "how long a silent agent stays registered")
	f.StringVar(&c.MapFile, "map-file", "", "keep the last good sibling map in this file and restore it at start")
	f.DurationVar(&c.MapWait, "map-wait", 30*time.Second, "how long after the start a router with --site-id and without a sibling map is not ready")

	f.DurationVar(&c.HintsFreshFor, "hints-fresh-for", 30*time.Second, "how long a hint of the sibling map is believed")
	f.StringVar(&c.HopSecretFile, "hop-secret-file", "", "secrets that the sites share, one a line: they sign redirects, so that a caller stays authenticated")
	f.StringSliceVar(&c.CORSOrigins, "cors-origins", nil, "origins of web pages that may call; * stands for all")
	f.StringVar(&c.AuthFile, "auth-file", "", "YAML file of API keys; without it everybody may call")
	f.StringVar(&c.IdentityMetadata, "identity-metadata", "", "namespace of dynamic metadata in which a filter of Envoy says who sent a request, such as envoy.filters.http.jwt_authn/claims: the keys that lead to it come after a slash")
	f.StringVar(&c.EngineAuthFile, "engine-auth-file", "", "YAML file that names, by model, the file with the engines' own key")
	f.BoolVar(&c.ForwardAuthorization, "forward-authorization", false, "pass the caller's Authorization and x-api-key on to engines, although they authenticate it here")
	f.StringVar(&c.PolicyFile, "policy-file", "", "YAML file of aliases and per-model policies")
	f.StringVar(&c.AuditFile, "audit-file", "", "write one JSON line per request to this file; - is standard output")
	c.AuditMaxSize = 100 << 20
	f.Var(&c.AuditMaxSize, "audit-max-size", "size at which the audit file is rotated")
	f.IntVar(&c.AuditBackups, "audit-backups", 5, "rotated audit files to keep; 0: all")

	f.StringVar(&c.KEDAListen, "keda-listen", "", "host:port of KEDA's external scaler; off by default")
	f.StringVar(&c.KEDATLSCertFile, "keda-tls-cert-file", "", "certificate of the scaler's port, read for each connection; plain text without it")
	f.StringVar(&c.KEDATLSKeyFile, "keda-tls-key-file", "", "key of that certificate")
	f.StringVar(&c.WebhookHeadersFile, "webhook-headers-file", "", "YAML file of secret headers for webhooks, by host")
	f.StringVar(&c.WebhookCAFile, "webhook-ca-file", "", "authorities that webhooks may have their certificates from, besides the system's; PEM")
	f.StringVar(&c.WebhookCertFile, "webhook-cert-file", "", "certificate that webhooks are shown, for those that ask for one; PEM")
	f.StringVar(&c.WebhookKeyFile, "webhook-key-file", "", "key of that certificate")

	f.DurationVar(&c.WakeHoldBudget, "wake-hold-budget", 5*time.Minute, "how long a request is held where its placement has no hold_budget; at most 1h")
	f.IntVar(&c.WakeHoldMax, "wake-hold-max", 100, "requests held per model")
	f.IntVar(&c.WakeHoldMaxPerKey, "wake-hold-max-per-key", 20, "requests held per API key and model")
	f.IntVar(&c.WakeHoldMaxTotal, "wake-hold-max-total", 1000, "requests held in total")
	c.WakeHoldMaxBytes = 256 << 20
	f.Var(&c.WakeHoldMaxBytes, "wake-hold-max-bytes", "body bytes of held requests in total")
	f.Var(&c.WakeHoldMaxBytesPerModel, "wake-hold-max-bytes-per-model", "body bytes of held requests for one model, while other models may be held here too; 0: half of --wake-hold-max-bytes, but at least --max-request-bytes")
	f.DurationVar(&c.WakeKeepalive, "wake-keepalive", 15*time.Second, "time between keepalives of a held request; 0: none")
	f.DurationVar(&c.WakeLinger, "wake-linger", 30*time.Second, "how long a model stays wanted after a waiter left unserved")
	f.StringVar(&c.WakeLateError, "wake-late-error", "auto", "how an answer ends that fails after it began: body (with an error in it), abort (with the error, and cut) or auto (as body, but cut for SDKs that do not stream, which would take it for a success)")
	f.StringVar(&c.WakeOrder, "wake-order", "fair", "who gets the next slot: fair (round-robin across keys) or arrival")
	f.DurationVar(&c.WakeCooldown, "wake-cooldown", 10*time.Second, "how long new requests for a model are refused, not held, after its wake failed; the cooldown of a webhook is another: the least time between its calls")

	f.IntVar(&c.QueueDepth, "queue-depth", 30, "requests per model that wait for a slot, besides released ones; 0: none waits")
	f.DurationVar(&c.RequestTimeout, "request-timeout", 60*time.Second, "how long a request waits for a slot")
	f.DurationVar(&c.AdmitParkTimeout, "admit-park-timeout", 250*time.Millisecond, "how long a request that was not held waits for room in the admission gate; the environment variable "+parkVariable+" sets it where neither flag nor file does")
	f.DurationVar(&c.RegistryGrace, "registry-grace", 3*time.Second, "how long after the start a model without agent may still be registering")
	f.DurationVar(&c.GroupGrace, "group-grace", agentreg.DefaultGroupGrace, "how long after the start no agent of a group is woken, since those that are awake may still be connecting; 0 where none can be awake")
	f.DurationVar(&c.DrainTimeout, "drain-timeout", 30*time.Second, "how long running answers may take at shutdown")
	c.MaxRequestBytes, c.MaxBodyBytesTotal, c.RelayMaxBytes = 10<<20, 512<<20, 64<<20
	f.Var(&c.MaxRequestBytes, "max-request-bytes", "largest request body")
	f.Var(&c.MaxBodyBytesTotal, "max-body-bytes-total", "size of all request bodies in memory, with what decoding compressed ones takes; beyond it, reading pauses")
	f.Var(&c.RelayMaxBytes, "relay-max-bytes", "largest relayed answer")

	f.StringVar(&c.MetricsPrefix, "metrics-prefix", "hivenet_", "prefix of the metrics")
	f.DurationVar(&c.MetricsKeep, "metrics-keep", 10*time.Minute, "how long the series of a model that is in no map, registry and policy file stay")
	f.StringVar(&c.LogFormat, "log-format", "json", "json or text")
	f.StringVar(&c.LogLevel, "log-level", "info", "debug, info, warn or error")
}

// Validate reports every value that cannot work, each with its flag and its rule.
func (c *Serve) Validate() error {
	var errs []error
	check := func(ok bool, flag string, value any, rule string) {
		if !ok {
			errs = append(errs, fmt.Errorf("--%s is %v: %s", flag, value, rule))
		}
	}
	const positive, notNegative = "must be above 0", "must not be negative"
	check(c.WakeHoldBudget > 0 && c.WakeHoldBudget <= MaxHoldBudget, "wake-hold-budget", c.WakeHoldBudget, "must be above 0 and at most 1h")
	for _, n := range []struct {
		flag  string
		value int
	}{
		{"wake-hold-max", c.WakeHoldMax},
		{"wake-hold-max-per-key", c.WakeHoldMaxPerKey},
		{"wake-hold-max-total", c.WakeHoldMaxTotal},
	} {
		check(n.value > 0, n.flag, n.value, positive)
	}
	for _, b := range []struct {
		flag  string
		value Bytes
	}{
		{"wake-hold-max-bytes", c.WakeHoldMaxBytes},
		{"max-request-bytes", c.MaxRequestBytes},
		{"relay-max-bytes", c.RelayMaxBytes},
	} {
		check(b.value > 0, b.flag, b.value, positive)
	}
	check(c.MaxBodyBytesTotal >= c.MaxRequestBytes, "max-body-bytes-total", c.MaxBodyBytesTotal, "must not be below --max-request-bytes")
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{
		{"wake-keepalive", c.WakeKeepalive},
		{"wake-linger", c.WakeLinger},
		{"wake-cooldown", c.WakeCooldown},
		{"registry-grace", c.RegistryGrace},
		{"map-wait", c.MapWait},
		{"group-grace", c.GroupGrace},
		{"admit-park-timeout", c.AdmitParkTimeout},
		{"hints-fresh-for", c.HintsFreshFor},
		{"drain-timeout", c.DrainTimeout},
	} {
		check(d.value >= 0, d.flag, d.value, notNegative)
	}
	check(c.AuditMaxSize >= 1<<20, "audit-max-size", c.AuditMaxSize, "must be at least 1MiB")
	check(c.AuditBackups >= 0, "audit-backups", c.AuditBackups, notNegative)
	check(c.QueueDepth >= 0, "queue-depth", c.QueueDepth, notNegative)
	check(c.RequestTimeout > 0, "request-timeout", c.RequestTimeout, positive)
	check(c.MetricsKeep > 0, "metrics-keep", c.MetricsKeep, positive)
	check(c.AgentLiveness > 0, "agent-liveness", c.AgentLiveness, positive)
	check(slices.Contains([]string{"auto", "body", "abort"}, c.WakeLateError), "wake-late-error", c.WakeLateError, "must be auto, body or abort")
	check(c.WakeOrder == "fair" || c.WakeOrder == "arrival", "wake-order", c.WakeOrder, "must be fair or arrival")
	check(validPrefix(c.MetricsPrefix), "metrics-prefix", c.MetricsPrefix, "may have only letters, digits and _, and must not begin with a digit")
	c.validateHolds(check)
	c.validateCallers(check)
	check(c.HopSecretFile == "" || c.SiteID != "", "hop-secret-file", c.HopSecretFile, "needs --site-id: a token says for which site it is")
	for _, s := range c.AgentsAllowCIDR {
		_, err := netip.ParsePrefix(s)
		check(err == nil, "agents-allow-cidr", s, "must be a network such as 10.0.0.0/8")
	}
	for _, s := range c.EnvoyAdmin {
		check(validEnvoyAdmin(s), "envoy-admin", s, "must be http://host:port or unix:///path")
	}
	check(c.KEDAListen == "" || strings.Contains(c.KEDAListen, ":"), "keda-listen", c.KEDAListen, "must be host:port")
	for _, l := range []struct{ flag, value string }{
		{"extproc-listen", c.ExtProcListen},
		{"agents-listen", c.AgentsListen},
		{"admin-listen", c.AdminListen},
		{"relay", c.Relay},
	} {
		network, address := Address(l.value)
		check(address != "" && (network == "unix" || strings.Contains(address, ":")), l.flag, l.value, "must be host:port or unix:///path")
	}
	if _, err := Logger(io.Discard, c.LogFormat, c.LogLevel); err != nil {
		errs = append(errs, err)
	}
	errs = append(append(errs, c.sockets()...), c.shared()...)
	return errors.Join(append(errs, c.secured()...)...)
}

// validateCallers checks who callers are, and what engines learn of their keys.
func (c *Serve) validateCallers(check func(ok bool, flag string, value any, rule string)) {
	check(!c.ForwardAuthorization || c.AuthFile != "" || c.IdentityMetadata != "", "forward-authorization", true,
		"needs --auth-file or --identity-metadata: without them callers' keys are passed on anyway")
	check(!c.ForwardAuthorization || c.EngineAuthFile == "", "forward-authorization", true,
		"does not go with --engine-auth-file: an engine gets the caller's key or its own")
	for _, s := range c.CORSOrigins {
		check(validOrigin(s), "cors-origins", s, "must be scheme://host or scheme://host:port, as browsers write it, or *")
	}
	if c.IdentityMetadata != "" {
		_, err := envoy.IdentityPath(c.IdentityMetadata)
		check(err == nil, "identity-metadata", c.IdentityMetadata, "must be a namespace other than holdgate, and keys below it after a slash")
	}
}

func validEnvoyAdmin(s string) bool {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.RawQuery != "" || u.User != nil:
		return false
	case u.Scheme == "unix":
		return u.Host == "" && len(u.Path) > 1
	}
	return u.Scheme == "http" && u.Host != "" && strings.Trim(u.Path, "/") == ""
}

func validPrefix(s string) bool {
	return strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == "" &&
		(s == "" || s[0] < '0' || s[0] > '9')
}
