// SPDX-License-Identifier: Apache-2.0

package refusal

import "github.com/holdgate/holdgate/holdstate"

// row is one reason to refuse a request.
type row struct {
	status     int
	code       string
	retryAfter retryAfter
	// text is the message. $model, $detail and $retry stand for the model, a detail of
	// this request, and Retry-After in words.
	text string
	// when is the text for docs/clients.md. Without it another row with the same
	// status, code and Retry-After describes this one as well.
	when string
	// cause is the error for which For returns this row.
	cause error
	// held restricts cause to requests that were held before.
	held bool
	// shed: the model is up, and the load is the cause: see Refusal.ByPicker.
	shed bool
	// label is the metric label for requests that were turned away from a model that is
	// up.
	label string
}

// retryAfter is the rule for Retry-After: a number of seconds, 0 for none, or one of the
// constants.
type retryAfter int

const (
	// quota is the time until the key's quota admits the request: from 1 to 60 seconds.
	quota retryAfter = -1 - iota
	// wake is the time until the model should be awake, learned from its wakes: from 1
	// to 60 seconds, and 30 while nothing was learned.
	wake
	// wakeOrNow is wake, but 1 when nothing was learned of the model and the client's
	// own timeout ended the wait: the client may retry at once, and its wait goes on.
	wakeOrNow
)

// rows are all rows in the order of the table.
var rows []*row

// The table. Each row is declared as the function that makes its refusal, or as _ where
// only For returns it.
var (
	redirected = detailed(row{
		status: 307, code: "redirected",
		text: "model $model is served by site $detail: follow the Location of this answer",
		when: "another site has the model: see [redirects](#redirects)",
	})

	requestInvalid = detailed(row{
		status: 400, code: "request_invalid",
		text: "$detail",
		when: "the body or a header cannot be read; the message says what",
	})
	// InvalidHTTP refuses a request that Envoy does not accept as HTTP.
	InvalidHTTP = plain(row{
		status: 400, code: "request_invalid",
		text: "the HTTP request is not acceptable",
	})

	unauthorized = detailed(row{
		status: 401, code: "unauthorized",
		text: "$detail",
		when: "no valid key, or an invalid token of a redirect",
	})

	// ModelForbidden refuses a model that the key may not use.
	ModelForbidden = ofModel(row{
		status: 403, code: "model_forbidden",
		text: "this key may not use model $model",
		when: "the key may not use the model",
	})

	ticketInvalid = detailed(row{
		status: 403, code: "pass_invalid",
		text: "$detail",
		when: "the request has the header `x-holdgate-pass`, which only the router may send",
	})

	notFound = detailed(row{
		status: 404, code: "not_found",
		text: "this path is not an endpoint of the router$detail",
		when: "the path is not an endpoint",
	})
	// ModelNotFound refuses a model that no replica serves and that may not be held
	// here.
	ModelNotFound = ofModel(row{
		status: 404, code: "model_not_found",
		text: "model $model does not exist here",
		when: "no replica serves the model, and it may not be held here",
	})

	methodNotAllowed = detailed(row{
		status: 405, code: "method_not_allowed",
		text: "this endpoint takes only $detail",
		when: "the endpoint has another method: see `allow`",
	})

	// RequestIncomplete refuses a request that did not arrive in time.
	RequestIncomplete = plain(row{
		status: 408, code: "request_timeout",
		text: "the request did not arrive in time",
		when: "the request did not arrive in time",
	})

	bodyTooLarge = detailed(row{
		status: 413, code: "request_too_large",
		text: "the request body is larger than $detail bytes",
		when: "the body is larger than `--max-request-bytes`",
	})
	// RequestTooLarge refuses a request that is too large for Envoy.
	RequestTooLarge = plain(row{
		status: 413, code: "request_too_large",
		text: "the request is too large",
	})

	// UnsupportedEncoding refuses a Content-Encoding that cannot be read.
	UnsupportedEncoding = plain(row{
		status: 415, code: "unsupported_encoding",
		text: "the request body has an unsupported content-encoding; use gzip, zstd, br or none",
		when: "`content-encoding` is not gzip, zstd, br or identity",
	})

	// NoWebSocket refuses an Upgrade on an endpoint where clients try one before they
	// send POST. Some send POST at once only after this status.
	NoWebSocket = plain(row{
		status: 426, code: "request_invalid",
		text: "there is no WebSocket here: send the request with POST",
		when: "HTTP/1.0, because the router supports HTTP/1.1 and HTTP/2 only; a WebSocket on `/v1/responses`",
	})
	// HTTP10 refuses HTTP/1.0.
	HTTP10 = plain(row{
		status: 426, code: "request_invalid",
		text: "HTTP/1.0 is not served here: use HTTP/1.1 or HTTP/2; in nginx set proxy_http_version 1.1",
	})

	// RateLimited refuses a key whose quota is used up for the given number of seconds.
	RateLimited = ofQuota(row{
		status: 429, code: "rate_limit_exceeded", retryAfter: quota,
		text: "this key has used up its quota; retry in $retry",
		when: "the key's quota is used up; 60 if the request alone is larger than the quota",
	})
	// The key has used its share of the model.
	_ = add(row{
		status: 429, code: "rate_limit_exceeded", retryAfter: 1,
		text:  "this key has its share of model $model in use; retry in $retry",
		when:  "the key's share of the model is in use",
		cause: holdstate.ErrOverShare, label: "over_share",
	})
	// The request is larger than the key's share of the model.
	_ = add(row{
		status: 429, code: "rate_limit_exceeded", retryAfter: 60,
		text:  "the request is larger than this key's share of model $model: make it shorter, or ask for less output",
		when:  "the request is larger than the key's share of the model",
		cause: holdstate.ErrOverShareAlways, label: "over_share",
	})
	// The admission gate of the model has no room.
	_ = add(row{
		status: 429, code: "concurrency_limit_exceeded", retryAfter: 1,
		text:  "model $model has as many requests in hand as it may; retry in $retry",
		when:  "no room in the admission gate, or the request is larger than all of it",
		cause: holdstate.ErrGateFull, label: "no_room",
	})
	// The request is larger than the admission gate of all replicas together.
	_ = add(row{
		status: 429, code: "concurrency_limit_exceeded", retryAfter: 1,
		text:  "the request is larger than what the replicas of model $model may have in hand: make it shorter, or ask for less output",
		cause: holdstate.ErrTooLarge, label: "too_large",
	})

	// HeadersTooLarge refuses a request whose headers exceed Envoy's limits.
	HeadersTooLarge = plain(row{
		status: 431, code: "request_too_large",
		text: "the request has too many headers, or too large ones",
		when: "there are too many headers, or too large ones",
	})

	// UnsupportedTransfer refuses a Transfer-Encoding that Envoy cannot read.
	UnsupportedTransfer = plain(row{
		status: 501, code: "unsupported_encoding",
		text: "the request has an unsupported transfer-encoding; use chunked, or a content-length",
		when: "`transfer-encoding` is not chunked",
	})

	// BackendError reports that engines ended the connection of a request, and that it
	// may not be tried again.
	BackendError = ofModel(row{
		status: 502, code: "backend_error",
		text:  "the engines of model $model ended the connection before they answered",
		when:  "engines closed the connection during the request, or no step of the policy has tries left",
		cause: holdstate.ErrTriesUsed, label: "tries_used_up",
	})
	// InvalidAnswer reports an answer of an engine that Envoy could not read.
	InvalidAnswer = ofModel(row{
		status: 502, code: "backend_error",
		text: "the engine of model $model sent an answer that is not valid HTTP, or has more headers than Envoy takes",
	})
	engineFailed = detailed(row{
		status: 502, code: "backend_error",
		text: "$detail",
	})

	// The hold budget ended.
	_ = add(row{
		status: 503, code: "model_waking", retryAfter: wakeOrNow,
		text:  "model $model is waking up; retry in $retry",
		when:  "the model did not wake in time, or its wake failed",
		cause: holdstate.ErrExpired,
	})
	// The wake failed, for the reason in detail.
	_ = add(row{
		status: 503, code: "model_waking", retryAfter: wake,
		text:  "model $model could not be woken: $detail; retry in $retry",
		cause: holdstate.ErrWakeFailed,
	})
	// A hold limit was reached.
	_ = add(row{
		status: 503, code: "model_waking", retryAfter: 30,
		text:  "model $model is waking up and too many requests are already waiting for it; retry in $retry",
		when:  "a hold limit is reached; or the model is up but had no room before the hold budget ended",
		cause: holdstate.ErrFull,
	})
	// The model woke, but the hold ended before its replicas had room.
	_ = add(row{
		status: 503, code: "model_waking", retryAfter: 30,
		text:  "model $model woke up but is still at capacity; retry in $retry",
		cause: holdstate.ErrGateFull, held: true, shed: true, label: "no_room",
	})
	// The replicas and the queue of the model are full.
	_ = add(row{
		status: 503, code: "no_capacity", retryAfter: 1,
		text:  "all replicas of model $model are busy; retry in $retry",
		when:  "all replicas are busy and the queue is full; the memory for bodies is used up; or a gateway allows none of the replicas",
		cause: holdstate.ErrNoQueue, shed: true, label: "queue_full",
	})
	// NotHinted reports that the gateway restricts the request to addresses of which none is that
	// of a replica of the model.
	NotHinted = ofModel(row{
		status: 503, code: "no_capacity", retryAfter: 1,
		text: "no replica of model $model is among the endpoints that the gateway allows; retry in $retry",
	})
	// NoMemory reports that the memory for request bodies is used up.
	NoMemory = plain(row{
		status: 503, code: "no_capacity", retryAfter: 1,
		text: "the router holds too many request bodies; retry in $retry",
	})
	// The router is shutting down.
	_ = add(row{
		status: 503, code: "draining", retryAfter: 1,
		text:  "this router is shutting down; retry in $retry",
		when:  "the router is shutting down",
		cause: holdstate.ErrDraining, label: "draining",
	})
	// MapNotLoaded reports that the router expects a sibling map and has none yet.
	MapNotLoaded = plain(row{
		status: 503, code: "map_not_loaded", retryAfter: 5,
		text: "the router has no sibling map yet; retry in $retry",
		when: "the router has no sibling map yet",
	})
	// RegistryWarming reports a model whose agents may not have registered since the
	// router started.
	RegistryWarming = ofModel(row{
		status: 503, code: "registry_warming", retryAfter: 2,
		text: "model $model may not be registered yet; retry in $retry",
		when: "the router has just started and the model's agent may not have registered",
	})
	// RouterUnavailable reports that Envoy could not forward the request to the router,
	// or to an engine.
	RouterUnavailable = plain(row{
		status: 503, code: "router_unavailable", retryAfter: 5,
		text: "the router is not available; retry in $retry",
		when: "Envoy cannot reach the router, or lost the engine",
	})
	// RouterRestarted reports that a request had a replica before the router restarted,
	// and that its caller is no longer known.
	RouterRestarted = plain(row{
		status: 503, code: "router_unavailable", retryAfter: 5,
		text: "the router was started again while this request was under way; retry in $retry",
	})

	// No slot was free in time.
	_ = add(row{
		status: 504, code: "request_timeout",
		text:  "no replica of model $model had a free slot in time",
		when:  "no slot was free within `--request-timeout`",
		cause: holdstate.ErrTimeout, label: "queue_timeout",
	})

	// LoopDetected reports a request that came back: the replica that it was sent to is
	// this router.
	LoopDetected = ofModel(row{
		status: 508, code: "loop_detected",
		text: "the engine of model $model is this router itself: the request came back",
		when: "the request came back to the router that had forwarded it",
	})
)
