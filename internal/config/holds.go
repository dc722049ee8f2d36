// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"time"

	"github.com/holdgate/holdgate/internal/settings"
)

// HoldBytesPerModel returns how many body bytes of one model may be held while other models
// may be held here too: by default half of the total, but at least one body of the maximum
// size.
func (c *Serve) HoldBytesPerModel() settings.Bytes {
	if c.WakeHoldMaxBytesPerModel > 0 {
		return c.WakeHoldMaxBytesPerModel
	}
	return max(c.WakeHoldMaxBytes/2, c.MaxRequestBytes)
}

// DrainTime returns how long a shutdown waits: by default as long as a request may be held.
func (c *Serve) DrainTime() time.Duration {
	if c.DrainTimeout > 0 {
		return c.DrainTimeout
	}
	return c.WakeHoldBudget
}

// checkHolds checks that every body that is accepted can also be held.
func (c *Serve) checkHolds(r *rules) {
	r.require(c.MaxBodyBytesTotal >= c.MaxRequestBytes, "max-body-bytes-total", c.MaxBodyBytesTotal, "must not be below --max-request-bytes")
	const tooSmall = "must not be below --max-request-bytes: a larger body could never be held"
	if c.WakeHoldMaxBytes > 0 {
		r.require(c.WakeHoldMaxBytes >= c.MaxRequestBytes, "wake-hold-max-bytes", c.WakeHoldMaxBytes, tooSmall)
	}
	if perModel := c.WakeHoldMaxBytesPerModel; perModel != 0 {
		r.require(perModel >= c.MaxRequestBytes, "wake-hold-max-bytes-per-model", perModel, tooSmall)
		r.require(perModel <= c.WakeHoldMaxBytes, "wake-hold-max-bytes-per-model", perModel, "must not be above --wake-hold-max-bytes")
	}
}

// Warnings returns warnings about settings that are valid but probably a mistake.
func (c *Serve) Warnings() []string {
	var list []string
	if c.WakeHoldMax >= c.WakeHoldMaxTotal {
		list = append(list, fmt.Sprintf(
			"--wake-hold-max is %d and --wake-hold-max-total is %d: requests for one model can use all of the second limit, and those for others are refused; lower the first or raise the second",
			c.WakeHoldMax, c.WakeHoldMaxTotal))
	}
	if c.WakeHoldMaxBytes > c.MaxBodyBytesTotal/2 {
		list = append(list, fmt.Sprintf(
			"--wake-hold-max-bytes is %v, more than half of --max-body-bytes-total, %v: while that much is held, large bodies of other requests wait for memory and are refused after 30s; lower the first or raise the second",
			c.WakeHoldMaxBytes, c.MaxBodyBytesTotal))
	}
	return append(list, c.exposedWarnings()...)
}
