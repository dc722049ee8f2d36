// SPDX-License-Identifier: Apache-2.0

package agentreg

// word is the state of a gate: from the lowest bits to the highest, the number of slots taken,
// whether the gate is closed, this router's share of the slots, and how many slots were
// released, modulo releases. Both numbers of slots are at most protocol.MaxSlots.
type word uint64

const (
	countBits   = 20
	countMask   = uint64(1)<<countBits - 1
	closedBit   = uint64(1) << countBits
	shareShift  = countBits + 1
	oneReleased = uint64(1) << (shareShift + countBits)
	releases    = uint64(1) << (64 - shareShift - countBits)
)

func (w word) taken() int64     { return int64(uint64(w) & countMask) }
func (w word) share() int64     { return int64(uint64(w) >> shareShift & countMask) }
func (w word) closed() bool     { return uint64(w)&closedBit != 0 }
func (w word) released() uint64 { return uint64(w) / oneReleased }

// withShare returns the word with another share.
func (w word) withShare(share int64) word {
	return word(uint64(w)&^(countMask<<shareShift) | uint64(share)<<shareShift) //nolint:gosec // not negative
}
