// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"bytes"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/body"
	"github.com/holdgate/holdgate/extproc/wire"
	"github.com/holdgate/holdgate/internal/refusal"
)

// head has what the router reads from the request headers. Its byte slices point into the
// buffer of the headers message.
type head struct {
	block           wire.HeaderBlock
	method, path    []byte
	requestID       []byte
	clientRequestID string
	contentLength   int64 // -1: not given
	coding          body.Coding
	upgrade         bool
	clocks
	badPatience   bool
	authorization string
	apiKey        string
	origin        string
	traceID       string
	failed        string   // in the rehold lane: Envoy's description of the attempt that failed
	stream        string   // Envoy's name of the request
	via           string   // Envoy's names of the requests that this one is a copy of
	picked        bool     // it names where a gateway is to send it
	ticket        string   // of a request that the relay has sent through a gateway
	count         int      // number of headers, including those that Envoy has added
	size          int      // of their names and values, in bytes
	private       []string // headers for Envoy or the router, which engines do not get
}

// clocks says how long a client waits. Not all of the headers with it are sent to engines,
// so only the first pass of a request sees them.
type clocks struct {
	keepaliveOff bool
	patience     time.Duration // how long the client waits for its answer; -1: unknown
	readTimeout  time.Duration // how long it waits for a byte; 0: unknown
	sdk          bool          // the client is an SDK
}

// Names of headers, and the prefixes of those that engines do not get.
const (
	wakePrefix      = "x-wake-"
	ownPrefix       = "x-holdgate-"
	headerRequestID = "x-request-id"
	headerClientID  = "x-client-request-id"
	headerKeepalive = "x-wake-keepalive"
	headerPatience  = "x-wake-timeout"
	headerAuthority = ":authority"

	headerAuthorization = "authorization"
	headerAPIKey        = "x-api-key"
)

func readHead(block wire.HeaderBlock) head {
	h := head{block: block, contentLength: -1, patience: -1}
	for name, value := range block.All() {
		h.count++
		h.size += len(name) + len(value)
		switch string(name) {
		case ":method":
			h.method = value
		case ":path":
			h.path = value
		case headerRequestID:
			h.requestID = value
		case headerClientID:
			h.clientRequestID = string(value)
		case "content-length":
			if n, err := strconv.ParseInt(string(value), 10, 64); err == nil {
				h.contentLength = n
			}
		case "content-encoding":
			h.addCoding(body.ParseCoding(string(value)))
		case "upgrade":
			h.upgrade = true
		case "traceparent":
			h.traceID = traceID(value)
		default:
			if !h.router(name, value) {
				h.sender(name, value)
			}
		}
	}
	return h
}

// router reads the headers that routers, and the Envoys before them, give to a request. It
// reports whether the header is one of them.
func (h *head) router(name, value []byte) bool {
	switch string(name) {
	case envoy.FailedHeader:
		h.failed = string(value)
	case envoy.StreamHeader:
		h.stream = string(value)
		h.private = append(h.private, envoy.StreamHeader)
	case envoy.TicketHeader:
		h.ticket += string(value) // of two, neither is valid
		h.private = append(h.private, envoy.TicketHeader)
	case envoy.PickedHeader:
		h.picked = true
	case envoy.ViaHeader:
		h.via += string(value) + ","
	default:
		return false
	}
	return true
}

// addCoding adds the coding of a Content-Encoding header. A body in more than one coding
// cannot be read.
func (h *head) addCoding(c body.Coding) {
	if h.coding == body.Identity {
		h.coding = c
	} else if c != body.Identity {
		h.coding = body.UnknownCoding
	}
}

// sender reads the headers that identify the caller, and how long it waits.
func (h *head) sender(name, value []byte) {
	switch {
	case string(name) == headerAuthorization:
		h.authorization = string(value)
	case string(name) == headerAPIKey:
		h.apiKey = string(value)
	case string(name) == headerOrigin:
		h.origin = string(value)
	case bytes.HasPrefix(name, []byte(wakePrefix)), bytes.HasPrefix(name, []byte(ownPrefix)):
		h.private = append(h.private, string(name))
		h.clock(string(name), string(value))
	case bytes.HasPrefix(name, []byte("x-stainless-")):
		h.sdk = true
		h.clock(string(name), string(value))
	}
}

// clock reads a header that says how long the client waits. Those of the SDKs are in
// seconds; invalid values of theirs are ignored.
func (h *head) clock(name, value string) {
	switch name {
	case headerKeepalive:
		h.keepaliveOff = strings.EqualFold(value, "off")
	case headerPatience:
		d, err := time.ParseDuration(value)
		h.badPatience = h.badPatience || err != nil || d < 0
		h.waitAtMost(d)
	case "x-stainless-timeout":
		// The SDK waits this long for the whole answer. The router must answer before.
		if d, ok := seconds(value); ok {
			h.waitAtMost(max(0, d-time.Second))
		}
	case "x-stainless-read-timeout":
		if d, ok := seconds(value); ok {
			h.readTimeout = d
		}
	}
}

func (h *head) waitAtMost(d time.Duration) {
	if h.patience < 0 || d < h.patience {
		h.patience = d
	}
}

func seconds(s string) (time.Duration, bool) {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || !(f > 0 && f < 1e9) {
		return 0, false
	}
	return time.Duration(f * float64(time.Second)), true
}

// minInterval is the shortest interval of keepalives that a client can ask for.
const minInterval = 500 * time.Millisecond

// keepaliveEvery returns the interval between keepalives, 0 for none: usual, or half of
// the client's read timeout if that is shorter.
func (h *head) keepaliveEvery(usual time.Duration) time.Duration {
	switch {
	case h.keepaliveOff:
		return 0
	case h.readTimeout == 0:
		return usual
	}
	return min(usual, max(h.readTimeout/2, minInterval))
}

// pathOnly returns the path without its query.
func (h *head) pathOnly() []byte {
	path, _, _ := bytes.Cut(h.path, []byte("?"))
	return path
}

const modelsPath = "/v1/models"

// models returns the model in a path of the models API, empty for the list. ok is false
// for any other path.
func (h *head) models() (model string, ok bool) {
	path := string(h.pathOnly())
	if path == modelsPath {
		return "", true
	}
	model, ok = strings.CutPrefix(path, modelsPath+"/")
	// Some clients escape the slash in a name.
	if plain, err := url.PathUnescape(model); err == nil {
		model = plain
	}
	return model, ok
}

// isForRouter reports whether the router answers a request from a gateway. e is its
// endpoint, or nil.
func (h *head) isForRouter(e *Endpoint) bool {
	if e != nil {
		return string(h.method) == http.MethodPost || h.upgrade // an engine may answer an upgrade as a call
	}
	_, ok := h.models()
	return ok && string(h.method) == http.MethodGet
}

// maxDecodings is how often a path is decoded: a proxy before the engine may decode it, too.
const maxDecodings = 3

// equivalent returns the endpoint that a call from a gateway may reach although its path is
// written in another way, empty if there is none: engines and proxies decode a path, merge its
// slashes and resolve its dot segments.
func (h *head) equivalent() string {
	if string(h.method) != http.MethodPost && !h.upgrade {
		return ""
	}
	plain := string(h.pathOnly())
	for range maxDecodings {
		decoded, err := url.PathUnescape(plain)
		if err != nil {
			break
		}
		plain = decoded
	}
	plain = path.Clean("/" + strings.ToLower(strings.ReplaceAll(plain, `\`, "/")))
	if endpoints[plain] == nil {
		return ""
	}
	return plain
}

// isCall reports whether a request to an endpoint calls it: with POST, and no Upgrade.
func (h *head) isCall() bool { return string(h.method) == http.MethodPost && !h.upgrade }

// spareHeaderBytes is how much larger the headers may get when a request is served: by an
// id and an engine's key.
const spareHeaderBytes = 1 << 10

// tooLarge reports whether Envoy could not send the request on with an engine's key: it
// answers 500 when the headers that ext_proc has changed are above its limits.
func (h *head) tooLarge() bool {
	return h.count-len(h.private)+1 > envoy.MaxRequestHeaders || h.size+spareHeaderBytes > envoy.MaxRequestHeaderBytes
}

// refusal returns the refusal of a call with invalid headers, or nil. end means that the
// call has no body.
func (h *head) refusal(limit int64, end bool) *refusal.Refusal {
	switch {
	case h.badPatience:
		return refusal.RequestInvalid("the header %s must be a duration such as 20s", headerPatience)
	case h.coding == body.UnknownCoding:
		return refusal.UnsupportedEncoding()
	case h.contentLength > limit:
		return refusal.TooLarge(limit)
	case end:
		return refusal.RequestInvalid("the request body is empty")
	}
	return nil
}
