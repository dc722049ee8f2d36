// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"strconv"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/holdgate/holdgate/internal/refusal"
)

const (
	// messagesPath is the prefix of the endpoints that use the Anthropic error format.
	messagesPath = "/v1/messages"
	// responsesPath is where clients try a WebSocket before they POST.
	responsesPath = "/v1/responses"
)

// envoyError is one class of errors that Envoy itself answers with.
type envoyError struct {
	op      accesslogv3.ComparisonFilter_Op
	status  uint32 // the status that Envoy chose
	answer  *refusal.Refusal
	kind    string                         // error.type of the Anthropic envelope
	when    []*accesslogv3.AccessLogFilter // conditions besides the status
	becomes uint32                         // the status to answer with; 0 keeps Envoy's
}

// envoyErrorClasses are tried in this order.
var envoyErrorClasses = []envoyError{
	{
		op: accesslogv3.ComparisonFilter_EQ, status: 501,
		answer: refusal.UnsupportedTransfer(), kind: "invalid_request_error",
	},
	{
		op: accesslogv3.ComparisonFilter_GE, status: 500,
		answer: refusal.RouterUnavailable(), kind: "overloaded_error",
	},
	{
		op: accesslogv3.ComparisonFilter_EQ, status: 413,
		answer: refusal.RequestTooLarge(), kind: "request_too_large",
	},
	{
		op: accesslogv3.ComparisonFilter_EQ, status: 431,
		answer: refusal.HeadersTooLarge(), kind: "request_too_large",
	},
	{
		op: accesslogv3.ComparisonFilter_EQ, status: 408,
		answer: refusal.RequestIncomplete(), kind: "invalid_request_error",
	},
	{
		// Codex falls back to POST at once only after 426.
		op: accesslogv3.ComparisonFilter_EQ, status: 403, becomes: 426,
		when:   []*accesslogv3.AccessLogFilter{pathFilter(responsesPath), upgradeFilter("websocket")},
		answer: refusal.NoWebSocket(), kind: "invalid_request_error",
	},
	{
		op: accesslogv3.ComparisonFilter_EQ, status: 426,
		answer: refusal.HTTP10(), kind: "invalid_request_error",
	},
	{
		op: accesslogv3.ComparisonFilter_GE, status: 400,
		answer: refusal.InvalidHTTP(), kind: "invalid_request_error",
	},
}

// envoyErrors returns a configuration that gives the errors Envoy answers with the
// router's JSON format.
func envoyErrors() *hcmv3.LocalReplyConfig {
	c := &hcmv3.LocalReplyConfig{}
	for _, e := range envoyErrorClasses {
		c.Mappers = append(c.Mappers, e.mapper(true), e.mapper(false))
	}
	return c
}

// mapper matches e on the endpoints of the Anthropic API, or on all.
func (e envoyError) mapper(anthropic bool) *hcmv3.ResponseMapper {
	filters := append([]*accesslogv3.AccessLogFilter{statusFilter(e.op, e.status), notFromHoldgate()}, e.when...)
	if anthropic {
		filters = append(filters, pathFilter(messagesPath))
	}
	m := &hcmv3.ResponseMapper{
		HeadersToAdd: append(corsAnswer(), requestIDInAnswer()),
		Filter: &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_AndFilter{
			AndFilter: &accesslogv3.AndFilter{Filters: filters},
		}},
		BodyFormatOverride: &corev3.SubstitutionFormatString{
			Format: &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: e.body(anthropic)},
		},
	}
	if e.becomes != 0 {
		m.StatusCode = wrapperspb.UInt32(e.becomes)
	}
	if after := e.answer.RetryAfter; after > 0 {
		m.HeadersToAdd = append(m.HeadersToAdd, header("retry-after", strconv.Itoa(after), overwriteOrAdd))
	}
	return m
}

// body returns the body in the error format of one API, as an Envoy format string.
func (e envoyError) body(anthropic bool) *structpb.Struct {
	inner := map[string]*structpb.Value{
		"code":    structpb.NewStringValue(e.answer.Code),
		"message": structpb.NewStringValue(e.answer.Message),
		"source":  structpb.NewStringValue("router"),
	}
	if after := e.answer.RetryAfter; after > 0 {
		inner["retry_after"] = structpb.NewNumberValue(float64(after))
	}
	outer := map[string]*structpb.Value{}
	if anthropic {
		inner["type"] = structpb.NewStringValue(e.kind)
		outer["type"] = structpb.NewStringValue("error")
	}
	outer["error"] = structpb.NewStructValue(&structpb.Struct{Fields: inner})
	return &structpb.Struct{Fields: outer}
}

// relayErrors returns a configuration that tells Holdgate, which calls through the
// relay lane, why Envoy got no answer from an engine.
func relayErrors() *hcmv3.LocalReplyConfig {
	return &hcmv3.LocalReplyConfig{Mappers: []*hcmv3.ResponseMapper{{
		Filter:       statusFilter(accesslogv3.ComparisonFilter_GE, 400),
		HeadersToAdd: []*corev3.HeaderValueOption{header(FlagsHeader, "%RESPONSE_FLAGS%", overwriteOrAdd)},
	}}}
}

func statusFilter(op accesslogv3.ComparisonFilter_Op, status uint32) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_StatusCodeFilter{
		StatusCodeFilter: &accesslogv3.StatusCodeFilter{Comparison: &accesslogv3.ComparisonFilter{
			Op: op,
			// Envoy requires a runtime key; nothing sets this one.
			Value: &corev3.RuntimeUInt32{DefaultValue: status, RuntimeKey: "holdgate.local_reply"},
		}},
	}}
}

// notFromHoldgate matches replies that Holdgate did not make: those of forwarded
// requests, and those of requests without a decision. It names the forwarded mode
// because the filter's invert has no effect (Envoy 1.40).
func notFromHoldgate() *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_MetadataFilter{
		MetadataFilter: &accesslogv3.MetadataFilter{
			Matcher: &matcherv3.MetadataMatcher{
				Filter: Namespace,
				Path: []*matcherv3.MetadataMatcher_PathSegment{{
					Segment: &matcherv3.MetadataMatcher_PathSegment_Key{Key: ModeKey},
				}},
				Value: &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_StringMatch{
					StringMatch: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: ModeNative}},
				}},
			},
			MatchIfKeyNotFound: wrapperspb.Bool(true),
		},
	}}
}

func pathFilter(prefix string) *accesslogv3.AccessLogFilter {
	return headerFilter(":path", &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: prefix}})
}

func upgradeFilter(protocol string) *accesslogv3.AccessLogFilter {
	return headerFilter("upgrade", &matcherv3.StringMatcher{
		MatchPattern: &matcherv3.StringMatcher_Exact{Exact: protocol}, IgnoreCase: true,
	})
}

func headerFilter(name string, matcher *matcherv3.StringMatcher) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_HeaderFilter{
		HeaderFilter: &accesslogv3.HeaderFilter{Header: &routev3.HeaderMatcher{
			Name:                 name,
			HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: matcher},
		}},
	}}
}
