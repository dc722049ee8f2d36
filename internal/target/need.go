// SPDX-License-Identifier: Apache-2.0

package target

// Need says whether a model should be up, and why.
type Need struct {
	// Demand: requests wait for the model.
	Demand bool
	// Ahead is not 0 while the model should be up without waiting requests: during a linger,
	// or after a wake ahead of traffic. Each of these has a different number.
	Ahead uint64
}

// Wanted reports whether the model should be up.
func (n Need) Wanted() bool { return n.Demand || n.Ahead != 0 }
