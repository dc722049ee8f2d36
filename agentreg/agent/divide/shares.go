// SPDX-License-Identifier: Apache-2.0

package divide

// Need is what a router has and needs.
type Need struct {
	Share   int // its present share
	Taken   int // the slots that its requests use
	Waiting int // its requests that wait for a slot
}

// wants returns how many of the slots the router could use.
func (n Need) wants(slots int) int { return min(n.Taken+n.Waiting, slots) }

// Shares divides slots among routers: each of those where requests wait gets a slot while there
// are that many, the first ones first; what is left goes max-min fairly to what they want; the
// rest is spread evenly over all. The shares add up to the slots. A division under which no
// request waits stays as it is.
func Shares(slots int, needs []Need) []int {
	shares := make([]int, len(needs))
	if stays(slots, needs) {
		for i, n := range needs {
			shares[i] = n.Share
		}
		return shares
	}
	most := make([]int, len(needs))
	for i, n := range needs {
		most[i] = min(n.Waiting, 1)
	}
	left := fill(shares, most, slots)
	for i, n := range needs {
		most[i] = n.wants(slots)
	}
	left = fill(shares, most, left)
	if len(needs) == 0 || left == 0 {
		return shares
	}
	for i := range needs {
		shares[i] += left / len(needs)
		most[i] = slots
	}
	fill(shares, most, left%len(needs)) // to the smallest, so that an idle router has a slot at hand
	return shares
}

// stays reports whether the present shares divide the slots, no request waits, and no router
// is without a slot while another has two.
func stays(slots int, needs []Need) bool {
	sum, least, most := 0, slots, 0
	for _, n := range needs {
		if n.Waiting > 0 {
			return false
		}
		sum += n.Share
		least, most = min(least, n.Share), max(most, n.Share)
	}
	return sum == slots && (least > 0 || most <= 1)
}

// fill raises the lowest of levels first, each to its most at the highest, by left in all. It
// returns what is left when all have their most. Of equal ones the first are raised first.
func fill(levels, most []int, left int) (rest int) {
	low, high := 0, 0 // the highest level that all can be raised to is in [low, high]
	for _, m := range most {
		high = max(high, m)
	}
	for low < high {
		if level := (low + high + 1) / 2; cost(levels, most, level) <= left {
			low = level
		} else {
			high = level - 1
		}
	}
	left -= cost(levels, most, low)
	for i := range levels {
		levels[i] = max(levels[i], min(most[i], low))
	}
	for i := range levels {
		if left > 0 && levels[i] <= low && levels[i] < most[i] {
			levels[i]++
			left--
		}
	}
	return left
}

// cost returns how much raises all levels to one level, or to their most if that is lower.
func cost(levels, most []int, level int) (sum int) {
	for i := range levels {
		sum += max(0, min(most[i], level)-levels[i])
	}
	return sum
}
