// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"slices"
	"strings"

	"github.com/holdgate/holdgate/internal/refusal"
)

// laneRefusal returns the refusal of a request that failed in the relay lane for a reason
// other than its replica, so that another one would not help. It returns nil when the
// engine refused the connection or ended it.
func (r *relay) laneRefusal(res result, flags string) *refusal.Refusal {
	switch {
	case res.err != nil:
		// The lane itself failed: it answers, with flags, when an engine fails.
		r.p.s.d.Log.Error().Err(res.err).Msg("calling an engine through Envoy's relay lane: is --relay the socket of the running Envoy?")
		return refusal.BackendError(r.p.req.Model)
	case hasFlag(flags, "UPE"):
		return refusal.InvalidAnswer(r.p.req.Model)
	case !hasFlag(flags, upstreamFlags...):
		return refusal.LaneRefused(res.resp.StatusCode)
	}
	return nil
}

// refusedFlags are Envoy's response flags for an attempt that never reached the engine:
// connection failure, no healthy host, overflow, no cluster. upstreamFlags are those for
// any attempt that failed because of the engine.
var (
	refusedFlags  = []string{"UF", "UH", "UO", "NC"}
	upstreamFlags = append([]string{"UC", "UR", "UT", "LR", "URX"}, refusedFlags...)
)

func refusedConnection(flags string) bool { return hasFlag(flags, refusedFlags...) }

// hasFlag reports whether Envoy's list of flags has one that is wanted.
func hasFlag(flags string, wanted ...string) bool {
	for flag := range strings.SplitSeq(flags, ",") {
		if slices.Contains(wanted, flag) {
			return true
		}
	}
	return false
}
