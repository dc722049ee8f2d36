// SPDX-License-Identifier: Apache-2.0

package extproctest

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	procfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// HeaderMap holds the headers of a list of names and values.
func HeaderMap(kv ...string) *corev3.HeaderMap {
	m := &corev3.HeaderMap{}
	for i := 0; i < len(kv); i += 2 {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: kv[i], RawValue: []byte(kv[i+1])})
	}
	return m
}

// RequestHeaders is a request_headers message.
func RequestHeaders(end bool, kv ...string) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{
		RequestHeaders: &extprocv3.HttpHeaders{Headers: HeaderMap(kv...), EndOfStream: end},
	}}
}

// RequestBody is a request_body message.
func RequestBody(b string, end bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: []byte(b), EndOfStream: end},
	}}
}

// RequestTrailers is a request_trailers message.
func RequestTrailers(kv ...string) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestTrailers{
		RequestTrailers: &extprocv3.HttpTrailers{Trailers: HeaderMap(kv...)},
	}}
}

// Request is a whole POST; headers are names and values.
func Request(path, body string, headers ...string) []*extprocv3.ProcessingRequest {
	kv := append([]string{":method", "POST", ":path", path, ":authority", "api.example.com"}, headers...)
	return []*extprocv3.ProcessingRequest{RequestHeaders(false, kv...), RequestBody(body, true)}
}

// Decorated adds what Envoy may add to any message.
func Decorated(m *extprocv3.ProcessingRequest) *extprocv3.ProcessingRequest {
	m = proto.CloneOf(m)
	attributes, _ := structpb.NewStruct(map[string]any{"request.path": "/v1/x", "n": 7.5, "list": []any{"a", nil, true}})
	m.Attributes = map[string]*structpb.Struct{"envoy.filters.http.ext_proc": attributes, "": {}}
	m.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"holdgate": attributes}}
	m.ProtocolConfig = &extprocv3.ProtocolConfiguration{
		RequestBodyMode:                         procfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
		SendBodyWithoutWaitingForHeaderResponse: true,
	}
	m.ObservabilityMode = true
	return m
}
