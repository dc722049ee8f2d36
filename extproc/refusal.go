// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"cmp"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"fmt"
	"net/http"
	"strings"
)

// Refusal is an answer of the router itself, made without any engine.
type Refusal struct { //nolint:errname // it is an answer that travels as an error
	Status     int
	Code       string
	Message    string
	RetryAfter int    // seconds; 0: no header
	Allow      string // of a 405

	engine *engineError // nil: it is the router's own
}

func (r *Refusal) Error() string { return fmt.Sprintf("%d %s: %s", r.Status, r.Code, r.Message) }

// The refusals by outcome, as DESIGN's table of outcomes has them.

// RequestInvalid is a request that cannot be read.
func RequestInvalid(format string, args ...any) *Refusal {
	return &Refusal{Status: http.StatusBadRequest, Code: "request_invalid", Message: fmt.Sprintf(format, args...)}
}

// NotFound is a path that is no endpoint; meant is the one that the client most likely
// wants, empty when there is none.
func NotFound(meant string) *Refusal {
	message := "this path is not an endpoint of the router"
	if meant != "" {
		message += ": use " + meant
	}
	return &Refusal{Status: http.StatusNotFound, Code: "not_found", Message: message}
}

// MethodNotAllowed is a method that the endpoint does not take.
func MethodNotAllowed(allow string) *Refusal {
	return &Refusal{
		Status: http.StatusMethodNotAllowed, Code: "method_not_allowed",
		Message: "this endpoint takes only " + allow, Allow: allow,
	}
}

// NoWebSocket is an Upgrade on an endpoint where clients try one before they send POST,
// which some do at once after this status alone.
func NoWebSocket() *Refusal {
	return &Refusal{
		Status: http.StatusUpgradeRequired, Code: "request_invalid",
		Message: "there is no WebSocket here: send the request with POST",
	}
}

// TooLarge is a body over the limit, in bytes.
func TooLarge(limit int64) *Refusal {
	return &Refusal{
		Status: http.StatusRequestEntityTooLarge, Code: "request_too_large",
		Message: fmt.Sprintf("the request body is larger than %d bytes", limit),
	}
}

// HeadersTooLarge is a request whose headers are over Envoy's limits.
func HeadersTooLarge() *Refusal {
	return &Refusal{
		Status: http.StatusRequestHeaderFieldsTooLarge, Code: "request_too_large",
		Message: "the request has too many headers, or too large ones",
	}
}

// UnsupportedEncoding is a Content-Encoding that cannot be read.
func UnsupportedEncoding() *Refusal {
	return &Refusal{
		Status: http.StatusUnsupportedMediaType, Code: "unsupported_encoding",
		Message: "the request body has an unsupported content-encoding; use gzip, zstd, br or none",
	}
}

// maxShown is how much of a client's own text a message repeats.
const maxShown = 256

// shown is a model's name as a message repeats it.
func shown(model string) string {
	if len(model) <= maxShown {
		return model
	}
	return strings.ToValidUTF8(model[:maxShown], "") + "…"
}

// ModelNotFound is a model that is neither served nor placed here.
func ModelNotFound(model string) *Refusal {
	return &Refusal{Status: http.StatusNotFound, Code: "model_not_found", Message: "model " + shown(model) + " does not exist here"}
}

// Unauthorized is a request without a good key.
func Unauthorized(message string) *Refusal {
	return &Refusal{Status: http.StatusUnauthorized, Code: "unauthorized", Message: message}
}

// RouterRestarted is a request that had a replica before the router was started again,
// and whose sender is not known any more.
func RouterRestarted() *Refusal {
	return &Refusal{
		Status: http.StatusServiceUnavailable, Code: "router_unavailable", RetryAfter: 5,
		Message: "the router was started again while this request was under way; retry in 5 seconds",
	}
}

// ModelForbidden is a model that the key may not use.
func ModelForbidden(model string) *Refusal {
	return &Refusal{Status: http.StatusForbidden, Code: "model_forbidden", Message: "this key may not use model " + shown(model)}
}

// RateLimited is a key over its quota or its share.
func RateLimited(retryAfter int) *Refusal {
	return &Refusal{
		Status: http.StatusTooManyRequests, Code: "rate_limit_exceeded", RetryAfter: retryAfter,
		Message: "this key has used up its quota; retry in " + inSeconds(retryAfter),
	}
}

func inSeconds(n int) string {
	if n == 1 {
		return "1 second"
	}
	return fmt.Sprintf("%d seconds", n)
}

// OverShare is a key that has its share of a model in use.
func OverShare(model string) *Refusal {
	return &Refusal{
		Status: http.StatusTooManyRequests, Code: "rate_limit_exceeded", RetryAfter: 1,
		Message: "this key has its share of model " + model + " in use; retry in 1 second",
	}
}

// LargerThanShare is a request that a key's share of a model could never take.
func LargerThanShare(model string) *Refusal {
	return &Refusal{
		Status: http.StatusTooManyRequests, Code: "rate_limit_exceeded", RetryAfter: 60,
		Message: "the request is larger than this key's share of model " + model + ": make it shorter, or ask for less output",
	}
}

// ConcurrencyLimit is a model whose replicas have as much in hand as they may.
func ConcurrencyLimit(model string) *Refusal {
	return &Refusal{
		Status: http.StatusTooManyRequests, Code: "concurrency_limit_exceeded", RetryAfter: 1,
		Message: "model " + model + " has as many requests in hand as it may; retry in 1 second",
	}
}

// LargerThanPool is a request that all replicas together could not take.
func LargerThanPool(model string) *Refusal {
	return &Refusal{
		Status: http.StatusTooManyRequests, Code: "concurrency_limit_exceeded", RetryAfter: 1,
		Message: "the request is larger than what the replicas of model " + model + " may have in hand: make it shorter, or ask for less output",
	}
}

// StillAtCapacity is a hold that ended before the woken replicas had room.
func StillAtCapacity(model string) *Refusal {
	const retryAfter = 30
	return waking(retryAfter, "model "+model+" woke up but is still at capacity; retry in "+inSeconds(retryAfter))
}

// MapNotLoaded is a router that expects a map and has none yet.
func MapNotLoaded() *Refusal {
	return &Refusal{
		Status: http.StatusServiceUnavailable, Code: "map_not_loaded", RetryAfter: 5,
		Message: "the router has no sibling map yet; retry in 5 seconds",
	}
}

// RegistryWarming is a model whose agents may not have registered since the start.
func RegistryWarming(model string) *Refusal {
	return &Refusal{
		Status: http.StatusServiceUnavailable, Code: "registry_warming", RetryAfter: 2,
		Message: "model " + model + " may not be registered yet; retry in 2 seconds",
	}
}

// NoCapacity is a model whose replicas and capacity queue are full.
func NoCapacity(model string) *Refusal {
	return &Refusal{
		Status: http.StatusServiceUnavailable, Code: "no_capacity", RetryAfter: 1,
		Message: "all replicas of model " + model + " are busy; retry in 1 second",
	}
}

// NoMemory is a router whose memory for request bodies stays taken.
func NoMemory() *Refusal {
	return &Refusal{
		Status: http.StatusServiceUnavailable, Code: "no_capacity", RetryAfter: 1,
		Message: "the router holds too many request bodies; retry in 1 second",
	}
}

// RequestTimeout is a wait for a slot that took too long.
func RequestTimeout(model string) *Refusal {
	return &Refusal{
		Status: http.StatusGatewayTimeout, Code: "request_timeout",
		Message: "no replica of model " + model + " had a free slot in time",
	}
}

// BackendError is a request under which two engines died.
func BackendError(model string) *Refusal {
	return &Refusal{
		Status: http.StatusBadGateway, Code: "backend_error",
		Message: "the engines of model " + model + " ended the connection before they answered",
	}
}

// LoopDetected is a request that came back: the replica it was sent to is this router.
func LoopDetected(model string) *Refusal {
	return &Refusal{
		Status: http.StatusLoopDetected, Code: "loop_detected",
		Message: "the engine of model " + model + " is this router itself: the request came back",
	}
}

// InvalidAnswer is an engine whose answer Envoy could not read.
func InvalidAnswer(model string) *Refusal {
	return &Refusal{
		Status: http.StatusBadGateway, Code: "backend_error",
		Message: "the engine of model " + model + " sent an answer that is not valid HTTP, or has more headers than Envoy takes",
	}
}

// LaneRefused is a request that Envoy's own lane to the engines refused with a status
// before any engine had it.
func LaneRefused(status int) *Refusal {
	switch {
	case status == http.StatusRequestHeaderFieldsTooLarge:
		return HeadersTooLarge()
	case status == http.StatusRequestEntityTooLarge:
		return &Refusal{Status: status, Code: "request_too_large", Message: "the request is too large"}
	case status < http.StatusInternalServerError:
		return &Refusal{Status: status, Code: "request_invalid", Message: "the HTTP request is not acceptable"}
	}
	return &Refusal{
		Status: http.StatusServiceUnavailable, Code: "router_unavailable", RetryAfter: 5,
		Message: "the router is not available; retry in 5 seconds",
	}
}

// Draining is a router that shuts down.
func Draining() *Refusal {
	return &Refusal{
		Status: http.StatusServiceUnavailable, Code: "draining", RetryAfter: 5,
		Message: "this router is shutting down; retry in 5 seconds",
	}
}

// Waking is a hold whose budget ran out.
func Waking(model string, retryAfter int) *Refusal {
	return waking(retryAfter, "model "+model+" is waking up; retry in "+inSeconds(retryAfter))
}

// TooManyWaiting is a request beyond a hold limit.
func TooManyWaiting(model string) *Refusal {
	const retryAfter = 30
	return waking(retryAfter, "model "+model+" is waking up and too many requests are already waiting for it; retry in "+inSeconds(retryAfter))
}

// WakeFailed is a model whose wake was reported failed.
func WakeFailed(model, reason string, retryAfter int) *Refusal {
	return waking(retryAfter, "model "+model+" could not be woken: "+reason+"; retry in "+inSeconds(retryAfter))
}

func waking(retryAfter int, message string) *Refusal {
	return &Refusal{Status: http.StatusServiceUnavailable, Code: "model_waking", Message: message, RetryAfter: retryAfter}
}

// errorObject is the object that every error body carries.
type errorObject struct {
	Type       string         `json:"type,omitzero"`
	Code       any            `json:"code"` // a string; an engine's own may be a number
	Message    string         `json:"message"`
	Param      jsontext.Value `json:"param,omitzero"`
	Source     string         `json:"source"`
	RetryAfter int            `json:"retry_after,omitzero"`
}

// envelope is an error body; Anthropic's has a type.
type envelope struct {
	Type  string      `json:"type,omitzero"`
	Error errorObject `json:"error"`
}

// object is the error as it stands in any body or event.
func (r *Refusal) object() errorObject {
	o := errorObject{Code: r.Code, Message: r.Message, Source: "router", RetryAfter: r.RetryAfter}
	if e := r.engine; e != nil {
		o.Source, o.Type, o.Param = "engine", e.kind, e.param
		if e.code != nil {
			o.Code = e.code
		}
	}
	return o
}

// envelope is the error in the form of an endpoint's protocol.
func (r *Refusal) envelope(api API) envelope {
	e := envelope{Error: r.object()}
	if api == Anthropic {
		e.Type, e.Error.Type = "error", cmp.Or(e.Error.Type, anthropicType(r.Status))
	}
	return e
}

// body is the JSON error in the form of the endpoint's protocol.
func (r *Refusal) body(api API) []byte { return marshal(r.envelope(api)) }

func marshal(v any) []byte {
	// A model's name in a path may be no UTF-8.
	b, err := json.Marshal(v, jsontext.AllowInvalidUTF8(true))
	if err != nil {
		return []byte(`{"error":{"code":"internal_error","message":"the error could not be written","source":"router"}}`)
	}
	return b
}

func anthropicType(status int) string {
	switch status {
	case http.StatusBadRequest:
		return "invalid_request_error"
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return "overloaded_error"
	default:
		return "api_error"
	}
}
