// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"slices"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdgate/holdgate/envoy"
)

// local marks an answer as the router's. Without it, Envoy's local_reply_config would
// rewrite answers with status 400 and above like Envoy's own.
var local = &structpb.Struct{Fields: map[string]*structpb.Value{
	envoy.Namespace: structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
		envoy.ModeKey: structpb.NewStringValue(envoy.ModeLocal),
	}}),
}}

// HeaderList is a list of headers: names, which are lower case, and values.
type HeaderList [][2]string

func (h HeaderList) options() []*corev3.HeaderValueOption {
	out := make([]*corev3.HeaderValueOption, 0, len(h))
	for _, kv := range h {
		out = append(out, &corev3.HeaderValueOption{
			Header:       &corev3.HeaderValue{Key: kv[0], RawValue: []byte(kv[1])},
			AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		})
	}
	return out
}

// Immediate returns the message that answers a request with a complete answer.
func Immediate(status int, headers HeaderList, body []byte) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_ImmediateResponse{ImmediateResponse: &extprocv3.ImmediateResponse{
			Status:  &typev3.HttpStatus{Code: typev3.StatusCode(status)}, //nolint:gosec // an HTTP status
			Headers: &extprocv3.HeaderMutation{SetHeaders: headers.options()},
			Body:    body,
		}},
		DynamicMetadata: local,
	}
}

// StreamHead returns the head of an answer that is sent piece by piece.
func StreamHead(status int, headers []*corev3.HeaderValue) *extprocv3.ProcessingResponse {
	all := append([]*corev3.HeaderValue{{Key: ":status", RawValue: strconv.AppendInt(nil, int64(status), 10)}}, headers...)
	return &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_StreamedImmediateResponse{
			StreamedImmediateResponse: &extprocv3.StreamedImmediateResponse{
				Response: &extprocv3.StreamedImmediateResponse_HeadersResponse{
					HeadersResponse: &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{Headers: all}},
				},
			},
		},
		DynamicMetadata: local,
	}
}

// StreamBody returns a piece of the body of such an answer.
func StreamBody(piece []byte, end bool) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_StreamedImmediateResponse{
			StreamedImmediateResponse: &extprocv3.StreamedImmediateResponse{
				Response: &extprocv3.StreamedImmediateResponse_BodyResponse{
					BodyResponse: &extprocv3.StreamedBodyResponse{Body: piece, EndOfStream: end},
				},
			},
		},
	}
}

// SetHeader sets a header of an answer, and replaces an engine's of the same name. It does
// nothing to a message without a head.
func SetHeader(m *extprocv3.ProcessingResponse, name, value string) {
	if answer := m.GetImmediateResponse(); answer != nil {
		answer.Headers.SetHeaders = append(answer.Headers.SetHeaders, HeaderList{{name, value}}.options()...)
		return
	}
	head := m.GetStreamedImmediateResponse().GetHeadersResponse().GetHeaders()
	if head == nil {
		return
	}
	sameName := func(h *corev3.HeaderValue) bool { return h.GetKey() == name }
	head.Headers = append(slices.DeleteFunc(head.GetHeaders(), sameName), &corev3.HeaderValue{Key: name, RawValue: []byte(value)})
}
