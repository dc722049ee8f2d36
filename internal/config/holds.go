// SPDX-License-Identifier: Apache-2.0

package config

import "fmt"

// HoldBytesPerModel is how many body bytes of one model may be held while other models
// may be held here too. It is never less than one body needs.
func (c *Serve) HoldBytesPerModel() Bytes {
	if c.WakeHoldMaxBytesPerModel > 0 {
		return c.WakeHoldMaxBytesPerModel
	}
	return max(c.WakeHoldMaxBytes/2, c.MaxRequestBytes)
}

// validateHolds checks that a body that is taken can also be held.
func (c *Serve) validateHolds(check func(ok bool, flag string, value any, rule string)) {
	const taken = "must not be below --max-request-bytes: a larger body could never be held"
	if c.WakeHoldMaxBytes > 0 {
		check(c.WakeHoldMaxBytes >= c.MaxRequestBytes, "wake-hold-max-bytes", c.WakeHoldMaxBytes, taken)
	}
	if perModel := c.WakeHoldMaxBytesPerModel; perModel != 0 {
		check(perModel >= c.MaxRequestBytes, "wake-hold-max-bytes-per-model", perModel, taken)
		check(perModel <= c.WakeHoldMaxBytes, "wake-hold-max-bytes-per-model", perModel, "must not be above --wake-hold-max-bytes")
	}
}

// Warnings are about settings that work and are seldom meant.
func (c *Serve) Warnings() []string {
	var list []string
	if c.WakeHoldMax >= c.WakeHoldMaxTotal {
		list = append(list, fmt.Sprintf(
			"--wake-hold-max is %d and --wake-hold-max-total is %d: requests for one model can take every place, and those for others are refused; lower the first or raise the second",
			c.WakeHoldMax, c.WakeHoldMaxTotal))
	}
	if c.WakeHoldMaxBytes > c.MaxBodyBytesTotal/2 {
		list = append(list, fmt.Sprintf(
			"--wake-hold-max-bytes is %v, more than half of --max-body-bytes-total, %v: while that much is held, large bodies of other requests wait for memory and are refused after 30s; lower the first or raise the second",
			c.WakeHoldMaxBytes, c.MaxBodyBytesTotal))
	}
	return append(list, c.exposed()...)
}
