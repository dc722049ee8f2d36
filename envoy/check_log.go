// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	grpclogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
)

// maxFlush is the longest acceptable delay before a slot is freed.
const maxFlush = 20 * time.Millisecond

// accessLog checks that Holdgate gets an access-log record at the end of each request
// of m. Requests of the rehold lane are already in the edge's log.
func (c *checker) accessLog(path string, m *manager, p *extprocv3.ExternalProcessor) {
	if lane(p) == LaneRehold {
		return
	}
	path += ": access_log"
	for _, log := range m.GetAccessLog() {
		config := &grpclogv3.HttpGrpcAccessLogConfig{}
		if !log.GetTypedConfig().MessageIs(config) || log.GetTypedConfig().UnmarshalTo(config) != nil {
			continue
		}
		if name := config.GetCommonConfig().GetLogName(); name == LogEdge || name == LogForwarded {
			c.log(path, log, config.GetCommonConfig(), p)
			return
		}
	}
	if c.Destination == toReplica {
		c.bad(path, "has no http_grpc log named %s that goes to holdgate: the slots of served requests are never freed", LogEdge)
	} else {
		c.warn(path, "has no http_grpc log named %s that goes to holdgate: holdgate does not limit how many requests an engine gets", LogEdge)
	}
}

// log checks the log that frees slots.
func (c *checker) log(path string, l *accesslogv3.AccessLog, config *grpclogv3.CommonGrpcAccessLogConfig, p *extprocv3.ExternalProcessor) {
	if d := config.GetBufferFlushInterval(); d == nil || d.AsDuration() > maxFlush {
		c.add(c.ifReplica(), path, "named %s has a buffer_flush_interval above %v, or none, which means 1s: slots are freed late", LogEdge, maxFlush)
	}
	if name := config.GetGrpcService().GetEnvoyGrpc().GetClusterName(); name != "" && name == serverOf(p) {
		level := Note
		if c.Destination == toReplica {
			level = Error
		}
		c.add(level, path, "named %s uses the cluster %s of ext_proc: while large uploads are under way Envoy drops log entries, and slots of requests that have ended stay taken", LogEdge, name)
	}
	if c.Destination != toReplica && l.GetFilter() != nil {
		c.note(path, "named %s has a filter: a request that it leaves out keeps its slot", LogEdge)
	}
}
