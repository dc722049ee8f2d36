// SPDX-License-Identifier: Apache-2.0

package extproctest

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	dataaccesslogv3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/holdgate/holdgate/envoy"
)

// Address is a socket address.
func Address(host string, port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}

// Logged is a message of an access-log stream; name is empty in all but the first.
func Logged(name string, entries ...*dataaccesslogv3.HTTPAccessLogEntry) *accesslogv3.StreamAccessLogsMessage {
	m := &accesslogv3.StreamAccessLogsMessage{LogEntries: &accesslogv3.StreamAccessLogsMessage_HttpLogs{
		HttpLogs: &accesslogv3.StreamAccessLogsMessage_HTTPAccessLogEntries{LogEntry: entries},
	}}
	if name != "" {
		m.Identifier = &accesslogv3.StreamAccessLogsMessage_Identifier{LogName: name, Node: &corev3.Node{Id: "node"}}
	}
	return m
}

// LogEntryOf is the log entry of a served request, with a change.
func LogEntryOf(change func(*dataaccesslogv3.HTTPAccessLogEntry)) *dataaccesslogv3.HTTPAccessLogEntry {
	e := &dataaccesslogv3.HTTPAccessLogEntry{
		CommonProperties: &dataaccesslogv3.AccessLogCommon{
			DownstreamRemoteAddress:       Address("192.0.2.1", 1),
			DownstreamDirectRemoteAddress: Address("192.0.2.9", 5555),
			UpstreamRemoteAddress:         Address("10.0.0.1", 8000),
			Duration:                      &durationpb.Duration{Seconds: 61, Nanos: 500},
			UpstreamRequestAttemptCount:   2,
			ResponseFlags:                 &dataaccesslogv3.ResponseFlags{UpstreamConnectionFailure: true},
			Metadata:                      ModeMetadata(envoy.ModeNative),
			UpstreamCluster:               "x",
		},
		ProtocolVersion: dataaccesslogv3.HTTPAccessLogEntry_HTTP2,
		Request: &dataaccesslogv3.HTTPRequestProperties{
			RequestId: "id", RequestBodyBytes: 1 << 40, Path: "/v1/x", RequestHeaders: map[string]string{"a": "b"},
		},
		Response: &dataaccesslogv3.HTTPResponseProperties{
			ResponseCode: wrapperspb.UInt32(429), ResponseBodyBytes: 77, ResponseCodeDetails: "via_upstream",
		},
	}
	if change != nil {
		change(e)
	}
	return e
}

// ModeMetadata is the router's dynamic metadata as Envoy's records have it. It is nil for a
// client that left before any answer.
func ModeMetadata(mode string) *corev3.Metadata {
	if mode == "" {
		return nil
	}
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
		"other": {},
		envoy.Namespace: {Fields: map[string]*structpb.Value{
			envoy.FirstKey: structpb.NewStringValue("10.0.0.1:8000"),
			envoy.ModeKey:  structpb.NewStringValue(mode),
		}},
	}}
}
