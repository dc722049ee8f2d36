// SPDX-License-Identifier: Apache-2.0

package envoy

// Namespace is the dynamic metadata that Holdgate writes and Envoy reads. All
// values are strings.
const Namespace = "holdgate"

// The keys of Namespace.
const (
	// FirstKey is the ip:port of the first attempt.
	FirstKey = "first"
	// ModeKey is ModeNative on forwarded requests and ModeLocal on each answer
	// that Holdgate makes, or Envoy takes the answer for an error of its own.
	ModeKey = "mode"
	// StreamKey is the id of StreamHeader.
	StreamKey = "stream"
	// ContentLengthKey is the length of the body that is sent back in chunks.
	ContentLengthKey = "content_length"
	// RateLimitKey becomes x-ratelimit-remaining-requests on a native answer.
	RateLimitKey = "ratelimit_remaining"
	// ServerTimingKey is added to server-timing on a native answer.
	ServerTimingKey = "server_timing"
	// CORSOriginKey is there when the router answers web pages: engines' CORS headers
	// are removed, and its value, unless empty, is the origin that may read the answer.
	CORSOriginKey = "cors_origin"
	// CORSExposeKey is what a page of that origin may read of the headers.
	CORSExposeKey = "cors_expose"
	// NotTakenKey has the statuses with which the destination says that it did not take
	// the request, with commas between them.
	NotTakenKey = "not_taken"
	// TLSKey has the one of Config.BackendCAs by which a destination over TLS is
	// known. It chooses the route, so the route cache must be cleared.
	TLSKey = "tls"
)

// The values of ModeKey.
const (
	ModeNative = "native"
	ModeLocal  = "local"
)

// What Envoy takes of request headers at the edge, and checks again after ext_proc has
// changed them, when it has added some itself.
const (
	MaxRequestHeaders     = 100 // Envoy's own default
	MaxRequestHeaderBytes = 64 << 10
)

// LaneMetadata is the gRPC initial metadata of an ext_proc stream that names
// its listener. No client can set it.
const LaneMetadata = "x-holdgate-lane"

// The values of LaneMetadata.
const (
	LaneEdge   = "edge"
	LaneRehold = "rehold"
)

// LogEdge is the name of the edge's access log: one record per request at its end.
const LogEdge = "edge"

// LogForwarded is the name of the same log where a proxy in front is trusted to say who
// the client is: there downstream_remote_address is the client's.
const LogForwarded = "edge-forwarded"

// Headers between Envoy and Holdgate. Clients cannot send them through the edge, and
// engines never see them, but for ViaHeader.
const (
	// DestinationHeader tells the relay lane the engine's ip:port.
	DestinationHeader = "x-holdgate-destination"
	// TLSHeader tells the relay lane what TLSKey tells the others.
	TLSHeader = "x-holdgate-tls"
	// SNIHeader is the name that a destination over TLS is known by, where that is not
	// the host.
	SNIHeader = "x-holdgate-sni"
	// FlagsHeader is the relay lane's word on why an engine gave no answer:
	// Envoy's response flags. Only answers that Envoy made itself carry it.
	FlagsHeader = "x-holdgate-flags"
	// StreamHeader is the id that Envoy gives each request; its access-log record
	// has it under StreamKey.
	StreamHeader = "x-holdgate-stream"
	// ViaHeader goes on to the engine with the id of StreamHeader, which no client
	// knows. A request that comes to the edge with the id of one in flight was sent on
	// by an engine of ours that is this router itself.
	ViaHeader = "holdgate-via"
	// FailedHeader tells the rehold lane which attempt brought it the request,
	// see ParseFailed. It is missing when no attempt was made, because the
	// destination was no address.
	FailedHeader = "x-holdgate-failed"
)
