// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	headersv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	codecv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/upstream_codec/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
)

// A header tells the rehold lane why it has the request: the access-log record of the
// failed attempt travels on another stream and may come later.
const (
	attemptHeader = "x-holdgate-attempt"
	attemptValue  = "%DYNAMIC_METADATA(holdgate:first)%;sent=%UPSTREAM_WIRE_BYTES_SENT%;received=%UPSTREAM_WIRE_BYTES_RECEIVED%"
	// failedValue is empty, and adds no header, on a first attempt.
	failedValue = "%CEL(upstream.request_attempt_count > 1 ? request.headers['" + attemptHeader + "'] : '')%"
	// notTakenHeader marks an answer whose status is listed in the metadata and whose
	// body does not come from an engine: engines answer in JSON. The route retries such
	// a request.
	notTakenHeader = "x-holdgate-not-taken"
	notTakenValue  = "%CEL('not_taken' in metadata.filter_metadata['holdgate'] && " +
		"metadata.filter_metadata['holdgate']['not_taken'].contains(response.headers[':status']) && " +
		"!('content-type' in response.headers && response.headers['content-type'].contains('json')) ? 'yes' : '')%"
)

// Failed describes the failed attempt before a pass through the rehold lane, as
// reported in FailedHeader.
type Failed struct {
	// Address is the destination of the attempt.
	Address netip.AddrPort
	// Sent is how many bytes of the request were written. 0 means that the destination
	// took no connection, so it never saw the request.
	Sent uint64
	// Received is how many bytes of an answer were received. Envoy could not use them:
	// they are not HTTP, they end in the response head, or NotTakenKey lists their
	// status.
	Received uint64
}

// ParseFailed parses the value of FailedHeader.
func ParseFailed(s string) (Failed, error) {
	address, sent, ok := strings.Cut(s, ";sent=")
	if !ok {
		return Failed{}, fmt.Errorf("reading %s %q: no ;sent= in it", FailedHeader, s)
	}
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return Failed{}, fmt.Errorf("reading %s %q: %w", FailedHeader, s, err)
	}
	sent, received, both := strings.Cut(sent, ";received=")
	if !both { // a bootstrap rendered before this field existed
		received = "0"
	}
	f := Failed{Address: at}
	if f.Sent, err = strconv.ParseUint(sent, 10, 64); err == nil {
		f.Received, err = strconv.ParseUint(received, 10, 64)
	}
	if err != nil {
		return Failed{}, fmt.Errorf("reading %s %q: %w", FailedHeader, s, err)
	}
	return f, nil
}

// attemptFilters run once per attempt, so that the second can name the first. Envoy
// takes them from the composite cluster, not from its members.
func (r *renderer) attemptFilters() []*hcmv3.HttpFilter {
	return []*hcmv3.HttpFilter{
		r.filter("envoy.filters.http.header_mutation", &headersv3.HeaderMutation{
			Mutations: &headersv3.Mutations{
				RequestMutations: []*mutationv3.HeaderMutation{
					// The rehold lane has read it; the engine behind the lane must not
					// see it.
					removeHeader(FailedHeader),
					setHeader(attemptHeader, attemptValue),
					setHeader(FailedHeader, failedValue),
					removeHeader(attemptHeader),
					removeHeader(SNIHeader),
				},
				ResponseMutations: []*mutationv3.HeaderMutation{
					removeHeader(notTakenHeader), // only this filter may set it
					setHeader(notTakenHeader, notTakenValue),
				},
			},
		}),
		r.filter("envoy.filters.http.upstream_codec", &codecv3.UpstreamCodec{}),
	}
}

func removeHeader(name string) *mutationv3.HeaderMutation {
	return &mutationv3.HeaderMutation{Action: &mutationv3.HeaderMutation_Remove{Remove: name}}
}

func setHeader(name, value string) *mutationv3.HeaderMutation {
	return &mutationv3.HeaderMutation{Action: &mutationv3.HeaderMutation_Append{Append: header(name, value, overwriteOrAdd)}}
}
