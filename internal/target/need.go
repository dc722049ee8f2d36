// SPDX-License-Identifier: Apache-2.0

package target

// Need is whether a model should be up, and why.
type Need struct {
	// Demand: requests wait for the model.
	Demand bool
	// Ahead is the number of the last request to keep the model up that needs no waiting
	// client: a linger, or a wake ahead of traffic. 0: none is in force.
	Ahead uint64
}

// Wanted reports whether the model should be up.
func (n Need) Wanted() bool { return n.Demand || n.Ahead != 0 }
