// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"time"

	grpclogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
)

// maxFlush is the longest acceptable delay before a slot is freed.
const maxFlush = 20 * time.Millisecond

// accessLog checks that Holdgate gets an access-log record at the end of each request
// of m. Requests of the rehold lane are already in the edge's log.
func (c *checker) accessLog(path string, m *hcmv3.HttpConnectionManager, p *extprocv3.ExternalProcessor) {
	for _, kv := range p.GetGrpcService().GetInitialMetadata() {
		if kv.GetKey() == LaneMetadata && kv.GetValue() == LaneRehold {
			return
		}
	}
	for _, log := range m.GetAccessLog() {
		config := &grpclogv3.HttpGrpcAccessLogConfig{}
		if !log.GetTypedConfig().MessageIs(config) || log.GetTypedConfig().UnmarshalTo(config) != nil {
			continue
		}
		if name := config.GetCommonConfig().GetLogName(); name != LogEdge && name != LogForwarded {
			continue
		}
		if d := config.GetCommonConfig().GetBufferFlushInterval(); d == nil || d.AsDuration() > maxFlush {
			c.bad(path+": access_log", "named %s has a buffer_flush_interval above %v, or none, which means 1s: slots are freed late", LogEdge, maxFlush)
		}
		if name := config.GetCommonConfig().GetGrpcService().GetEnvoyGrpc().GetClusterName(); name != "" && name == p.GetGrpcService().GetEnvoyGrpc().GetClusterName() {
			c.bad(path+": access_log", "named %s uses the cluster %s of ext_proc: behind uploads its records are dropped, and slots are lost", LogEdge, name)
		}
		return
	}
	c.bad(path+": access_log", "has no http_grpc log named %s that goes to holdgate: the slots of served requests are never freed", LogEdge)
}
