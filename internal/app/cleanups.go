// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"
	"slices"
)

// cleanups is a stack of functions that undo the steps of a function that may fail.
type cleanups []func() error

func (c *cleanups) add(undo func() error) { *c = append(*c, undo) }

// onError runs the clean-ups in reverse order if *err is not nil, and joins their errors to
// it. Callers defer it.
func (c *cleanups) onError(err *error) {
	if *err == nil {
		return
	}
	for _, undo := range slices.Backward(*c) {
		*err = errors.Join(*err, undo())
	}
}
