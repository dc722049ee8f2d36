// SPDX-License-Identifier: Apache-2.0

// Package pickertest has an endpoint picker for tests. It follows the endpoint picker protocol
// (004) of the Gateway API inference extension as real ones do: it answers the headers of a
// request once it has the whole body, sends bodies on in chunks of its own, and sees answers,
// too.
package pickertest

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"
)

// The header, the namespace and its key in which a picker names the endpoint.
const (
	Header    = "x-gateway-destination-endpoint"
	Namespace = "envoy.lb"
)

// pieceSize is the largest piece of a body that is sent. It is not the size of Envoy's own.
const pieceSize = 62000

// Counts says what a picker has seen.
type Counts struct {
	Requests  int // it has named an endpoint for, or refused
	Answers   int // heads of answers to these
	Strangers int // heads of answers to requests that it never saw
}

// Picker is an endpoint picker. Until Name is called it has no endpoint.
type Picker struct {
	mu        sync.Mutex
	endpoints []string
	shed      bool
	counts    Counts
}

// Name sets the endpoints that it names, in order of choice. None: it refuses with 503.
func (p *Picker) Name(endpoints ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endpoints = endpoints
}

// Shed makes it refuse every request with 429.
func (p *Picker) Shed(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shed = on
}

// Counts returns what it has seen.
func (p *Picker) Counts() Counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts
}

// Serve serves Envoy on l until stop is called.
func (p *Picker) Serve(l net.Listener) (stop func()) {
	s := grpc.NewServer()
	extprocv3.RegisterExternalProcessorServer(s, p)
	go func() { _ = s.Serve(l) }()
	return s.Stop
}

// Process handles one request and its answer.
func (p *Picker) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	e := &exchange{picker: p}
	for {
		m, err := stream.Recv()
		if err != nil {
			return nil //nolint:nilerr // the request has ended
		}
		for _, r := range e.respond(m) {
			if err := stream.Send(r); err != nil {
				return fmt.Errorf("sending a response: %w", err)
			}
			if r.GetImmediateResponse() != nil {
				return nil
			}
		}
	}
}

// exchange is one request.
type exchange struct {
	picker *Picker
	asked  bool // the request was seen
	body   []byte
}

// respond returns the responses to a message.
func (e *exchange) respond(m *extprocv3.ProcessingRequest) []*extprocv3.ProcessingResponse {
	switch {
	case m.GetRequestHeaders() != nil:
		e.asked = true
		if m.GetRequestHeaders().GetEndOfStream() {
			return e.pick()
		}
	case m.GetRequestBody() != nil:
		e.body = append(e.body, m.GetRequestBody().GetBody()...)
		if m.GetRequestBody().GetEndOfStream() {
			return append(e.pick(), pieces(e.body, true, requestBody)...)
		}
	case m.GetRequestTrailers() != nil:
		return append(append(e.pick(), pieces(e.body, false, requestBody)...),
			&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestTrailers{RequestTrailers: &extprocv3.TrailersResponse{}}})
	case m.GetResponseHeaders() != nil:
		e.picker.sawAnswer(e.asked)
		return []*extprocv3.ProcessingResponse{{Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{}}}}
	case m.GetResponseBody() != nil:
		return pieces(m.GetResponseBody().GetBody(), m.GetResponseBody().GetEndOfStream(), responseBody)
	case m.GetResponseTrailers() != nil:
		return []*extprocv3.ProcessingResponse{{Response: &extprocv3.ProcessingResponse_ResponseTrailers{ResponseTrailers: &extprocv3.TrailersResponse{}}}}
	}
	return nil
}

func (p *Picker) sawAnswer(asked bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if asked {
		p.counts.Answers++
	} else {
		p.counts.Strangers++
	}
}

// pick returns the response to the headers of a request, which names the endpoints, or the
// refusal.
func (e *exchange) pick() []*extprocv3.ProcessingResponse {
	p := e.picker
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts.Requests++
	switch {
	case p.shed:
		return refusal(typev3.StatusCode_TooManyRequests, "too many requests")
	case len(p.endpoints) == 0:
		return refusal(typev3.StatusCode_ServiceUnavailable, "no endpoint")
	}
	names := strings.Join(p.endpoints, ",")
	inner := &structpb.Struct{Fields: map[string]*structpb.Value{Header: structpb.NewStringValue(names)}}
	set := &corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: Header, RawValue: []byte(names)}, AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD}
	return []*extprocv3.ProcessingResponse{{
		Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{Response: &extprocv3.CommonResponse{
			ClearRouteCache: true,
			HeaderMutation:  &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{set}},
		}}},
		DynamicMetadata: &structpb.Struct{Fields: map[string]*structpb.Value{Namespace: structpb.NewStructValue(inner)}},
	}}
}

func refusal(status typev3.StatusCode, text string) []*extprocv3.ProcessingResponse {
	return []*extprocv3.ProcessingResponse{{Response: &extprocv3.ProcessingResponse_ImmediateResponse{ImmediateResponse: &extprocv3.ImmediateResponse{
		Status: &typev3.HttpStatus{Code: status}, Body: []byte("picker: " + text),
	}}}}
}

// pieces returns responses with a body. With end the last one ends it.
func pieces(body []byte, end bool, response func(*extprocv3.BodyResponse) *extprocv3.ProcessingResponse) []*extprocv3.ProcessingResponse {
	var all []*extprocv3.ProcessingResponse
	for piece := range slices.Chunk(body, pieceSize) {
		all = append(all, streamed(piece, response))
	}
	if len(all) == 0 && end {
		all = append(all, streamed(nil, response))
	}
	if end {
		last := all[len(all)-1]
		for _, b := range []*extprocv3.BodyResponse{last.GetRequestBody(), last.GetResponseBody()} {
			if b != nil {
				b.GetResponse().GetBodyMutation().GetStreamedResponse().EndOfStream = true
			}
		}
	}
	return all
}

func streamed(piece []byte, response func(*extprocv3.BodyResponse) *extprocv3.ProcessingResponse) *extprocv3.ProcessingResponse {
	return response(&extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{
		Mutation: &extprocv3.BodyMutation_StreamedResponse{StreamedResponse: &extprocv3.StreamedBodyResponse{Body: piece}},
	}}})
}

func requestBody(b *extprocv3.BodyResponse) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: b}}
}

func responseBody(b *extprocv3.BodyResponse) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: b}}
}
