// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"slices"
	"strings"
)

// Envoy's response flags for an attempt that failed because of the engine.
var (
	// refusedFlags: it never reached the engine. Connection failure, no healthy host,
	// overflow, no cluster.
	refusedFlags = []string{"UF", "UH", "UO", "NC"}
	// diedFlags: the engine ended it.
	diedFlags = []string{"UC", "UR", "UT", "LR", "URX"}
)

// hasFlag reports whether Envoy's list of flags has one that is wanted.
func hasFlag(flags string, wanted ...string) bool {
	for flag := range strings.SplitSeq(flags, ",") {
		if slices.Contains(wanted, flag) {
			return true
		}
	}
	return false
}
