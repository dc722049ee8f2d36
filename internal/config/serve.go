// SPDX-License-Identifier: Apache-2.0

package config

import (
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/holdgate/holdgate/agentreg"
	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/internal/backend"
	"github.com/holdgate/holdgate/internal/policy"
	"github.com/holdgate/holdgate/internal/settings"
	"github.com/holdgate/holdgate/internal/shared"
	"github.com/holdgate/holdgate/internal/unixsocket"
)

// Serve has the settings of holdgate serve. Flags and keys of the file have the same names:
// see the table in the method settings.
type Serve struct {
	Version string // of the program; it has no flag

	SiteID        string
	ExtProcListen string
	AgentsListen  string
	AdminListen   string
	Relay         string
	RelayCAFile   string
	// Destination is a policy.Destination.
	Destination string
	// EndpointFallbacks is of policy.Endpoint.
	EndpointFallbacks int
	EnvoyAdmin        []string
	PortsFile         string
	Takeover          bool
	// TakeoverSocket is the value of the flag; use TakeoverPath.
	TakeoverSocket string

	ExtProcTLSCertFile  string
	ExtProcTLSKeyFile   string
	ExtProcClientCAFile string
	ExtProcClientNames  []string
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

	Shared             string
	SharedPasswordFile string
	SharedCAFile       string

	AuditFile    string
	AuditMaxSize settings.Bytes
	AuditBackups int

	WakeHoldBudget    time.Duration
	WakeHoldMax       int
	WakeHoldMaxPerKey int
	WakeHoldMaxTotal  int
	WakeHoldMaxBytes  settings.Bytes
	// WakeHoldMaxBytesPerModel is the value of the flag; use HoldBytesPerModel.
	WakeHoldMaxBytesPerModel settings.Bytes
	WakeKeepalive            time.Duration
	WakeLinger               time.Duration
	WakeLateError            string
	WakeOrder                string
	WakeCooldown             time.Duration

	QueueDepth       int
	RequestTimeout   time.Duration
	AdmitParkTimeout time.Duration
	RegistryGrace    time.Duration
	GroupGrace       time.Duration
	// DrainTimeout is the value of the flag; use DrainTime.
	DrainTimeout      time.Duration
	MaxRequestBytes   settings.Bytes
	MaxBodyBytesTotal settings.Bytes
	RelayMaxBytes     settings.Bytes

	MetricsPrefix string
	MetricsKeep   time.Duration
	LogFormat     string
	LogLevel      string

	// Backends can be configured only in the file.
	Backends []backend.Config
}

// MaxHoldBudget is the longest hold budget of a flag or a placement.
const MaxHoldBudget = time.Hour

// settings returns the table of all settings, in the order of the documentation.
func (c *Serve) settings() []setting {
	return []setting{
		flagOf(&c.SiteID, "site-id", "", "name of this site in the sibling map; without it only models of backends are held"),
		flagOf(&c.ExtProcListen, "extproc-listen", "unix:///run/holdgate/extproc.sock", "address for Envoy: unix:///path or host:port", validAddress).address(),
		flagOf(&c.AgentsListen, "agents-listen", "127.0.0.1:9002", "address for agents: host:port or unix:///path", validAddress).address(),
		flagOf(&c.AdminListen, "admin-listen", "127.0.0.1:9003", "address of the admin API, with metrics, health and the map: host:port or unix:///path", validAddress).address(),
		flagOf(&c.Destination, "destination", string(policy.Replica), "how requests are sent on, unless the policy of their model says it: replica (to the replica that the router chooses), route (as a gateway routes them) or endpoint (to the replica that the router names to a gateway): see docs/gateways", validDestination),
		flagOf(&c.EndpointFallbacks, "endpoint-fallbacks", 0, "with destination endpoint: how many replicas after the first a gateway is told of, at most 2; 0 for a gateway that takes only one address", validFallbacks),
		flagOf(&c.Relay, "relay", "unix:///run/holdgate/relay.sock", "Envoy's relay lane: unix:///path or host:port; for models with destination route or endpoint the gateway's listener for clients instead: http://host:port or https://host", validRelay).address(),
		flagOf(&c.RelayCAFile, "relay-ca-file", "", "CAs of the certificate of an https --relay; PEM; the system's without it").withRequired("relay"),
		listOf(&c.EnvoyAdmin, "envoy-admin", "admin interfaces of all Envoys that connect here, http://host:port or unix:///path: their counts correct the effect of lost access-log entries, and at a shutdown they ask their clients to connect elsewhere", validEnvoyAdmin),
		flagOf(&c.PortsFile, "ports-file", "", "write the addresses in use to this file, as JSON, when ready"),

		flagOf(&c.Takeover, "takeover", false, "take over from the process that runs with the same flags, if there is one, and let the next such process take over from this one: no request is lost, not even one that waits"),
		flagOf(&c.TakeoverSocket, "takeover-socket", "", "unix:///path over which processes take over from one another; by default takeover.sock beside --extproc-listen", validTakeover).address(),

		flagOf(&c.ExtProcTLSCertFile, "extproc-tls-cert-file", "", "certificate of the port that Envoy connects to; required unless --extproc-listen is a loopback address or a unix socket").withRequired("extproc-tls-key-file", "extproc-client-ca-file"),
		flagOf(&c.ExtProcTLSKeyFile, "extproc-tls-key-file", "", "key of that certificate").secretFile().withRequired("extproc-tls-cert-file"),
		flagOf(&c.ExtProcClientCAFile, "extproc-client-ca-file", "", "CAs of Envoys' certificates: each connection needs such a certificate").withRequired("extproc-tls-cert-file"),
		listOf(&c.ExtProcClientNames, "extproc-client-names", "names of which an Envoy's certificate must have one, among its DNS names and URIs such as spiffe://cluster.local/ns/gateways/sa/envoy; without it each certificate of --extproc-client-ca-file may connect", validCertName),
		flagOf(&c.ExtProcInsecure, "extproc-insecure", false, "allow --extproc-listen and --relay on TCP addresses that others can reach, without TLS: a client of the first can send requests without a key, as any tenant and identity, and gets the engines' keys; a client of the second can send requests to any address"),
		flagOf(&c.AdminTokenFile, "admin-token-file", "", "bearer token of the admin API; required unless --admin-listen is a loopback address").secretFile(),
		flagOf(&c.AgentsTokenFile, "agents-token-file", "", "bearer tokens that agents may use, one per line").secretFile(),
		flagOf(&c.AgentsTLSCertFile, "agents-tls-cert-file", "", "certificate of the agents' port; required unless --agents-listen is a loopback address or a unix socket").withRequired("agents-tls-key-file"),
		flagOf(&c.AgentsTLSKeyFile, "agents-tls-key-file", "", "key of that certificate").secretFile().withRequired("agents-tls-cert-file"),
		flagOf(&c.AgentsClientCAFile, "agents-client-ca-file", "", "CAs of agents' certificates: each connection needs such a certificate, and a token only with --agents-token-file").withRequired("agents-tls-cert-file"),
		listOf(&c.AgentsAllowCIDR, "agents-allow-cidr", "networks in which agents may name an address that is not their own", validNetwork),
		flagOf(&c.AgentsReflection, "agents-reflection", false, "let gRPC tools list the services of the agents' port"),
		flagOf(&c.AgentLiveness, "agent-liveness", 15*time.Second, "how long a silent agent stays registered", positive),
		flagOf(&c.MapFile, "map-file", "", "keep the last valid sibling map in this file and restore it at start"),
		flagOf(&c.MapWait, "map-wait", 30*time.Second, "how long after the start a router with --site-id but without a sibling map is not ready", notNegative),

		flagOf(&c.HintsFreshFor, "hints-fresh-for", 30*time.Second, "how long a hint of the sibling map is valid", notNegative),
		flagOf(&c.HopSecretFile, "hop-secret-file", "", "secrets that the sites share, one per line: they sign redirects, so that a caller stays authenticated").secretFile(),
		listOf(&c.CORSOrigins, "cors-origins", "origins of web pages that may call; * stands for all", validOrigin),
		flagOf(&c.AuthFile, "auth-file", "", "YAML file of API keys; without it no key is required"),
		flagOf(&c.IdentityMetadata, "identity-metadata", "", "namespace of dynamic metadata in which an Envoy filter identifies the caller, followed by the keys that lead to the identity, each after a slash, such as envoy.filters.http.jwt_authn/claims", validIdentity),
		flagOf(&c.EngineAuthFile, "engine-auth-file", "", "YAML file that names, by model, the file with the engines' key"),
		flagOf(&c.ForwardAuthorization, "forward-authorization", false, "pass the caller's Authorization and x-api-key on to engines, even if they authenticate the caller here"),
		flagOf(&c.PolicyFile, "policy-file", "", "YAML file of aliases and per-model policies"),
		flagOf(&c.AuditFile, "audit-file", "", "write one JSON line per request to this file; - is standard output"),
		flagOf(&c.AuditMaxSize, "audit-max-size", 100<<20, "size at which the audit file is rotated", validAuditSize),
		flagOf(&c.AuditBackups, "audit-backups", 5, "rotated audit files to keep; 0: all", notNegative),

		flagOf(&c.KEDAListen, "keda-listen", "", "host:port of KEDA's external scaler; off by default", validKEDA).address(),
		flagOf(&c.KEDATLSCertFile, "keda-tls-cert-file", "", "certificate of the scaler's port, read for each connection; plain text without it").withRequired("keda-tls-key-file"),
		flagOf(&c.KEDATLSKeyFile, "keda-tls-key-file", "", "key of that certificate").secretFile().withRequired("keda-tls-cert-file"),
		flagOf(&c.WebhookHeadersFile, "webhook-headers-file", "", "YAML file of secret headers for webhooks, by host").secretFile(),
		flagOf(&c.WebhookCAFile, "webhook-ca-file", "", "CAs for the certificates of webhooks, in addition to the system's; PEM"),
		flagOf(&c.WebhookCertFile, "webhook-cert-file", "", "client certificate for webhooks that require one; PEM").withRequired("webhook-key-file"),
		flagOf(&c.WebhookKeyFile, "webhook-key-file", "", "key of that certificate").secretFile().withRequired("webhook-cert-file"),

		flagOf(&c.Shared, "shared", "", "Valkey or Redis server by which the routers of this site act as one: valkey://host:port/database?prefix=NAME, valkeys:// for TLS, or unix:///path?prefix=NAME; further parameters are addr (another address) and master_set (the name of the primary, for sentinels); a router alone needs none", validShared),
		flagOf(&c.SharedPasswordFile, "shared-password-file", "", "file with the password of that server, or the user and the password on two lines").secretFile().withRequired("shared"),
		flagOf(&c.SharedCAFile, "shared-ca-file", "", "CAs of that server's certificate; PEM; the system's without it").withRequired("shared"),

		flagOf(&c.WakeHoldBudget, "wake-hold-budget", 5*time.Minute, "how long a request is held if its placement has no hold_budget; at most 1h", validBudget),
		flagOf(&c.WakeHoldMax, "wake-hold-max", 100, "requests held per model; with --shared at all routers of the site", positive),
		flagOf(&c.WakeHoldMaxPerKey, "wake-hold-max-per-key", 20, "requests held per API key and model; with --shared at all routers of the site", positive),
		flagOf(&c.WakeHoldMaxTotal, "wake-hold-max-total", 1000, "requests held in total; with --shared at all routers of the site", positive),
		flagOf(&c.WakeHoldMaxBytes, "wake-hold-max-bytes", 256<<20, "body bytes of held requests in total", positive),
		flagOf(&c.WakeHoldMaxBytesPerModel, "wake-hold-max-bytes-per-model", 0, "body bytes of held requests for one model, while other models may be held here too; 0: half of --wake-hold-max-bytes, but at least --max-request-bytes"),
		flagOf(&c.WakeKeepalive, "wake-keepalive", 15*time.Second, "time between keepalives of a held request; 0: none", notNegative),
		flagOf(&c.WakeLinger, "wake-linger", 30*time.Second, "how long a model stays wanted after a request stopped waiting without being served", notNegative),
		flagOf(&c.WakeLateError, "wake-late-error", "auto", "how an answer ends that fails after it began: body (with an error in it), abort (with the error, and cut) or auto (like body, but cut for SDK requests that do not stream, where the SDK would take it for a success)", oneOf("auto", "body", "abort")),
		flagOf(&c.WakeOrder, "wake-order", "fair", "which request gets the next slot: fair (round-robin across keys) or arrival", oneOf("fair", "arrival")),
		flagOf(&c.WakeCooldown, "wake-cooldown", 10*time.Second, "how long new requests for a model are refused, not held, after its wake failed; not the cooldown of a webhook, which is the minimum time between its calls", notNegative),

		flagOf(&c.QueueDepth, "queue-depth", 30, "requests per model that may wait for a slot, in addition to released ones; 0: none", notNegative),
		flagOf(&c.RequestTimeout, "request-timeout", 60*time.Second, "how long a request waits for a slot", positive),
		flagOf(&c.AdmitParkTimeout, "admit-park-timeout", 250*time.Millisecond, "how long a request that was not held waits for a reservation of the admission gate; the environment variable "+parkVariable+" sets it if neither flag nor file does", notNegative),
		flagOf(&c.RegistryGrace, "registry-grace", 3*time.Second, "how long after the start the agents of a model may still be registering", notNegative),
		flagOf(&c.GroupGrace, "group-grace", agentreg.DefaultGroupGrace, "how long after the start no agent of a group is woken, because agents that are awake may still be connecting; 0 if none can be awake", notNegative),
		flagOf(&c.DrainTimeout, "drain-timeout", 0, "how long a shutdown waits for held requests whose answer has begun, and for answers that the router relays; 0: --wake-hold-budget", notNegative),
		flagOf(&c.MaxRequestBytes, "max-request-bytes", 10<<20, "largest request body", positive),
		flagOf(&c.MaxBodyBytesTotal, "max-body-bytes-total", 512<<20, "memory of all request bodies, including the decoding of compressed ones; above it, reading pauses"),
		flagOf(&c.RelayMaxBytes, "relay-max-bytes", 64<<20, "largest relayed answer", positive),

		flagOf(&c.MetricsPrefix, "metrics-prefix", "hivenet_", "prefix of the metrics", validPrefix),
		flagOf(&c.MetricsKeep, "metrics-keep", 10*time.Minute, "how long series are kept of a model that is in no map, registry, backend or policy file", positive),
		flagOf(&c.LogFormat, "log-format", "json", "json or text"),
		flagOf(&c.LogLevel, "log-level", "info", "debug, info, warn or error"),
	}
}

// Flags declares all flags with their defaults.
func (c *Serve) Flags(f *pflag.FlagSet) {
	for _, s := range c.settings() {
		s.declare(f)
	}
}

// Validate returns all invalid values as settings.Problems, each with its flag and the rule
// that it breaks.
func (c *Serve) Validate() error {
	var r rules
	for _, s := range c.settings() {
		s.check(&r)
	}
	c.checkHolds(&r)
	r.require(!c.Takeover || c.TakeoverPath() != "", "takeover", true, "needs --takeover-socket, since --extproc-listen is not a unix socket")
	if c.Takeover {
		r.Check("--takeover-socket", unixsocket.CheckPath(c.FormerPath(largestPID)))
	}
	c.checkCallers(&r)
	c.checkGateway(&r)
	_, err := Logger(io.Discard, c.LogFormat, c.LogLevel)
	r.Check("", err) // it names the flag
	c.checkAddresses(&r)
	c.checkExposure(&r)
	return r.Err()
}

// checkCallers checks the settings for identifying callers and for passing their keys on to
// engines.
func (c *Serve) checkCallers(r *rules) {
	r.require(c.HopSecretFile == "" || c.SiteID != "", "hop-secret-file", c.HopSecretFile, "needs --site-id: a token says for which site it is")
	r.require(!c.ForwardAuthorization || c.AuthFile != "" || c.IdentityMetadata != "", "forward-authorization", true,
		"needs --auth-file or --identity-metadata: without them callers' keys are passed on anyway")
	r.require(!c.ForwardAuthorization || c.EngineAuthFile == "", "forward-authorization", true,
		"does not go with --engine-auth-file: an engine gets the caller's key or its own")
}

// TakeoverPath returns the path of the socket over which processes take over from one another,
// empty if there is none.
func (c *Serve) TakeoverPath() string {
	if !c.Takeover {
		return ""
	}
	if path, ok := strings.CutPrefix(c.TakeoverSocket, "unix://"); ok {
		return path
	}
	if path, ok := strings.CutPrefix(c.ExtProcListen, "unix://"); ok {
		return filepath.Join(filepath.Dir(path), "takeover.sock")
	}
	return ""
}

// largestPID is the largest id of a process.
const largestPID = 1 << 22

// FormerPath returns the path of the socket where a process that was replaced takes the streams of
// agents that connect to the process that has replaced it.
func (c *Serve) FormerPath(pid int) string { return c.TakeoverPath() + "." + strconv.Itoa(pid) }

func validTakeover(s string) string {
	return messageUnless(s == "" || strings.HasPrefix(s, "unix:///"), "must be unix:///path")
}

func validBudget(d time.Duration) string {
	return messageUnless(d > 0 && d <= MaxHoldBudget, "must be above 0 and at most 1h")
}

func validAuditSize(b settings.Bytes) string {
	return messageUnless(b >= 1<<20, "must be at least 1MiB")
}

func validShared(s string) string {
	if s == "" {
		return ""
	}
	if err := shared.Check(s); err != nil {
		return err.Error()
	}
	return ""
}

func validCertName(s string) string {
	return messageUnless(s != "" && !strings.ContainsAny(s, " *"), "must be a DNS name or a URI, without wildcards")
}

func validKEDA(s string) string {
	return messageUnless(s == "" || strings.Contains(s, ":"), "must be host:port")
}

func validIdentity(s string) string {
	if s == "" {
		return ""
	}
	_, err := envoy.IdentityPath(s)
	return messageUnless(err == nil, "must be a namespace other than holdgate, and keys below it after a slash")
}

func validPrefix(s string) string {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"
	ok := strings.Trim(s, letters) == "" && (s == "" || s[0] < '0' || s[0] > '9')
	return messageUnless(ok, "may have only letters, digits and _, and must not begin with a digit")
}
