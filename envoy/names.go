// SPDX-License-Identifier: Apache-2.0

package envoy

// Namespace is the namespace of dynamic metadata that Holdgate writes and Envoy reads.
// All values are strings.
const Namespace = "holdgate"

// The keys of Namespace.
const (
	// FirstKey is the ip:port of the first attempt.
	FirstKey = "first"
	// ModeKey is ModeNative on forwarded requests and ModeLocal on each answer that
	// Holdgate makes. Without it Envoy takes such an answer for an error of its own.
	ModeKey = "mode"
	// StreamKey is the id of StreamHeader.
	StreamKey = "stream"
	// ContentLengthKey is the length of the body that is sent back in chunks.
	ContentLengthKey = "content_length"
	// RateLimitKey becomes x-ratelimit-remaining-requests on a native answer.
	RateLimitKey = "ratelimit_remaining"
	// ServerTimingKey is added to server-timing on a native answer.
	ServerTimingKey = "server_timing"
	// CORSOriginKey is set when the router handles CORS: engines' CORS headers are
	// removed, and the value, unless empty, is the origin that may read the answer.
	CORSOriginKey = "cors_origin"
	// CORSExposeKey lists the headers that a page of that origin may read.
	CORSExposeKey = "cors_expose"
	// NotTakenKey lists, separated by commas, the statuses with which the destination
	// reports that it did not take the request.
	NotTakenKey = "not_taken"
	// TLSKey is the entry of Config.BackendCAs for a destination over TLS. It chooses
	// the route, so the route cache must be cleared.
	TLSKey = "tls"
	// PoolKey is the name of the pool that a request goes to. It chooses the route, so the
	// route cache must be cleared.
	PoolKey = "pool"
)

// The values of ModeKey.
const (
	ModeNative = "native"
	ModeLocal  = "local"
	// ModeRelayed is on a request that the relay has sent through a gateway. Its record is
	// not that of the client's request.
	ModeRelayed = "relayed"
)

// Envoy's limits on request headers at the edge. Envoy checks them again after ext_proc
// has changed the headers, when it has added some itself.
const (
	MaxRequestHeaders     = 100 // Envoy's own default
	MaxRequestHeaderBytes = 64 << 10
)

// The names of the endpoint picker protocol of the Gateway API inference extension.
const (
	// PickedHeader is the header, and the key in the dynamic metadata PickedNamespace, with the
	// addresses to which a gateway sends the request: ip:port, several separated by commas.
	PickedHeader    = "x-gateway-destination-endpoint"
	PickedNamespace = "envoy.lb"
	// HintNamespace and HintKey are where a gateway says to which addresses a request may be
	// sent.
	HintNamespace = "envoy.lb.subset_hint"
	HintKey       = "x-gateway-destination-endpoint-subset"
)

// LaneMetadata is the key of the gRPC initial metadata of an ext_proc stream that names
// its listener. No client can set it.
const LaneMetadata = "x-holdgate-lane"

// The values of LaneMetadata.
const (
	LaneEdge   = "edge"
	LaneRehold = "rehold"
)

// LogEdge is the name of the edge's access log: one record per request at its end.
const LogEdge = "edge"

// LogForwarded is the name of the same log where a proxy in front is trusted to report
// the client: there downstream_remote_address is the client's.
const LogForwarded = "edge-forwarded"

// Headers between Envoy and Holdgate. Clients cannot send them through the edge, and
// engines never see them, except for ViaHeader.
const (
	// DestinationHeader gives the relay lane the engine's ip:port.
	DestinationHeader = "x-holdgate-destination"
	// TLSHeader gives the relay lane the value of TLSKey.
	TLSHeader = "x-holdgate-tls"
	// PoolHeader gives the relay lane the value of PoolKey.
	PoolHeader = "x-holdgate-pool"
	// SNIHeader is the server name of a destination over TLS, where that differs from
	// the host.
	SNIHeader = "x-holdgate-sni"
	// FlagsHeader has Envoy's response flags: why an engine gave no answer to a request
	// of the relay lane. Only answers that Envoy made itself have it.
	FlagsHeader = "x-holdgate-flags"
	// StreamHeader is the id that Envoy gives each request; its access-log record has
	// the id under StreamKey.
	StreamHeader = "x-holdgate-stream"
	// TicketHeader has the ticket of a request that the relay has sent through a gateway.
	TicketHeader = "x-holdgate-pass"
	// ViaHeader is sent to the engine with the id of StreamHeader, which no client
	// knows. A request at the edge with the id of one in flight was forwarded by an
	// engine that is this router itself.
	ViaHeader = "holdgate-via"
	// FailedHeader tells the rehold lane which attempt failed, see ParseFailed. It is
	// missing when no attempt was made, because the destination was not an address.
	FailedHeader = "x-holdgate-failed"
)
