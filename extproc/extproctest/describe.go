// SPDX-License-Identifier: Apache-2.0

package extproctest

import (
	"fmt"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/holdgate/holdgate/envoy"
)

// Describe describes an answer of the router in a few words.
func Describe(m *extprocv3.ProcessingResponse) string {
	mode := m.GetDynamicMetadata().GetFields()[envoy.Namespace].GetStructValue().GetFields()
	switch a := m.GetResponse().(type) {
	case *extprocv3.ProcessingResponse_RequestHeaders:
		if len(mode) == 0 {
			return "untouched"
		}
		text := "serve on " + mode["first"].GetStringValue() + ", " + mode["content_length"].GetStringValue() + " bytes"
		if mode["mode"].GetStringValue() != "native" {
			text += ", but not native"
		}
		if a.RequestHeaders.GetResponse().GetStatus() == extprocv3.CommonResponse_CONTINUE_AND_REPLACE {
			text += ", whole"
		}
		return text
	case *extprocv3.ProcessingResponse_RequestBody:
		b := a.RequestBody.GetResponse().GetBodyMutation().GetStreamedResponse()
		return fmt.Sprintf("body %d%s", len(b.GetBody()), ending(b.GetEndOfStream()))
	case *extprocv3.ProcessingResponse_RequestTrailers:
		return "trailers"
	case *extprocv3.ProcessingResponse_ResponseHeaders:
		return "answer's head"
	case *extprocv3.ProcessingResponse_ResponseBody:
		if b := a.ResponseBody.GetResponse().GetBodyMutation().GetStreamedResponse(); b != nil {
			return fmt.Sprintf("answer %q%s", b.GetBody(), ending(b.GetEndOfStream()))
		}
		return "answer goes on"
	case *extprocv3.ProcessingResponse_ResponseTrailers:
		return "answer's trailers"
	default:
		return describeLocal(m, mode["mode"].GetStringValue())
	}
}

// describeLocal describes an answer that is not an engine's.
func describeLocal(m *extprocv3.ProcessingResponse, mode string) string {
	text := ""
	switch a := m.GetResponse().(type) {
	case *extprocv3.ProcessingResponse_ImmediateResponse:
		text = fmt.Sprintf("%d %s", a.ImmediateResponse.GetStatus().GetCode(), a.ImmediateResponse.GetBody())
	case *extprocv3.ProcessingResponse_StreamedImmediateResponse:
		if b := a.StreamedImmediateResponse.GetBodyResponse(); b != nil {
			return fmt.Sprintf("%q%s", b.GetBody(), ending(b.GetEndOfStream()))
		}
		for _, h := range a.StreamedImmediateResponse.GetHeadersResponse().GetHeaders().GetHeaders() {
			if h.GetKey() == ":status" {
				text = "head " + string(h.GetRawValue())
			}
		}
	default:
		return fmt.Sprintf("%v", m)
	}
	if mode != "local" {
		text += ", but not local"
	}
	return text
}

func ending(end bool) string {
	if end {
		return " end"
	}
	return ""
}
