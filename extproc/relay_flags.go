// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"slices"
	"strings"

	"github.com/holdgate/holdgate/internal/refusal"
)

// laneRefusal is the answer to a request that failed in the relay lane for a reason that
// is not the engine's going away: no replica is to blame, and no other one would do
// better. It is nil when the engine refused the connection or ended it.
func (r *relay) laneRefusal(res result, flags string) *refusal.Refusal {
	switch {
	case res.err != nil:
		// What an engine does reaches us as an answer of the lane with flags.
		r.p.s.d.Log.Error().Err(res.err).Msg("calling an engine through Envoy's relay lane: is --relay the socket of the running Envoy?")
		return refusal.BackendError(r.p.req.Model)
	case hasFlag(flags, "UPE"):
		return refusal.InvalidAnswer(r.p.req.Model)
	case !hasFlag(flags, upstreamFlags...):
		return refusal.LaneRefused(res.resp.StatusCode)
	}
	return nil
}

// refusedFlags are Envoy's response flags of an attempt that never reached the engine:
// connection failure, no healthy host, overflow, no cluster. With one of
// upstreamFlags the reason is the engine's.
var (
	refusedFlags  = []string{"UF", "UH", "UO", "NC"}
	upstreamFlags = append([]string{"UC", "UR", "UT", "LR", "URX"}, refusedFlags...)
)

func refusedConnection(flags string) bool { return hasFlag(flags, refusedFlags...) }

// hasFlag says whether one of the wanted flags is in a list of Envoy.
func hasFlag(flags string, wanted ...string) bool {
	for flag := range strings.SplitSeq(flags, ",") {
		if slices.Contains(wanted, flag) {
			return true
		}
	}
	return false
}
