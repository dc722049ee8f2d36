// SPDX-License-Identifier: Apache-2.0

package access

import "time"

// Limiter counts requests against quotas that the routers of a site share. It is safe for
// concurrent use.
type Limiter interface {
	// Charge counts a request against all limits of a key, or against none if one of them has
	// less than one token left. It calls answered once with what was left of each before. If
	// that is later than Charge returns, this router has decided alone.
	Charge(key string, limits []Limit, answered func([]Left, error))
	// Peek returns what Charge would return now, and counts nothing.
	Peek(key string, limits []Limit) ([]Left, error)
	// Routers returns how many routers share the quotas, as far as is known.
	Routers() int
}

// Limit is a limit for a Limiter.
type Limit struct {
	Model      string // empty: the limit over all models
	PerReplica int    // requests per minute
	Replicas   int
	// Expected is how many tokens the site has if no other router has charged any since this
	// one last asked. A Limiter that has lost a bucket begins again with them.
	Expected float64
	// Owed is how many tokens this router charged by itself since. They are taken from the
	// bucket, down to none.
	Owed float64
}

// Left is what a site has left of a limit.
type Left struct {
	Tokens    float64
	PerMinute float64 // the limit in force, for all replicas
}

// chargeShared counts a request against the quotas of the site. While they cannot be asked,
// this router charges its part of what the site had left: so all routers together charge about
// what it had left, and what its buckets get meanwhile.
func (q *quota) chargeShared(model string, replicas int, now time.Time) Result {
	c := q.newCharge(model, replicas, now)
	if len(c.asked) == 0 {
		return unlimited
	}
	q.limiter.Charge(q.id, c.asked, c.answered)
	q.mu.Lock()
	defer q.mu.Unlock()
	if c.left != nil {
		return resultOf(c.left)
	}
	r := q.chargeAlone(model, replicas, now)
	if !c.ended {
		c.wait(r.OK)
	}
	return r
}

// charge is a call of the Limiter. The lock of the quota guards it.
type charge struct {
	q      *quota
	at     time.Time
	asked  []Limit
	limits []*limit // that asked is for
	ended  bool     // the answer or an error has come
	left   []Left   // the answer, if it came in time

	late  bool     // this router has decided alone
	alone float64  // the tokens that it has charged then
	known []uint64 // of each limit, how often its tokens were known then
}

// newCharge returns a charge before its call.
func (q *quota) newCharge(model string, replicas int, now time.Time) *charge {
	q.mu.Lock()
	defer q.mu.Unlock()
	c := &charge{q: q, at: q.notBefore(now)}
	c.asked, c.limits = q.limits(model, replicas, c.at).ask(model, c.at)
	for i, l := range c.limits {
		l.telling += c.asked[i].Owed
	}
	return c
}

// wait notes that this router has decided alone, and whether it charged the request. While it is
// not known whether the site has counted the request too, the site is not told.
func (c *charge) wait(charged bool) {
	c.late = true
	if charged {
		c.alone = 1
	}
	for _, l := range c.limits {
		l.telling += c.alone
		c.known = append(c.known, l.known)
	}
}

// answered notes the answer or the error of the call.
func (c *charge) answered(left []Left, err error) {
	c.q.mu.Lock()
	defer c.q.mu.Unlock()
	c.ended = true
	for i, l := range c.limits {
		l.telling -= c.asked[i].Owed + c.alone
	}
	if err != nil {
		return
	}
	if !c.late {
		c.left = left
	}
	c.know(left)
}

// know notes what the site was told and what it has left, which counts unless another answer
// has come while this one was late.
func (c *charge) know(left []Left) {
	counted, now := resultOf(left).OK, c.q.latest
	for i, l := range c.limits {
		have, told := left[i], c.asked[i].Owed
		if counted {
			have.Tokens--
			told += c.alone
		}
		l.told(told, now)
		if !c.late {
			l.known++
		} else if l.known != c.known[i] {
			continue
		}
		l.know(have, c.at, c.q.limiter.Routers(), now)
	}
}

// ask returns the limits for the Limiter, and those that they are for.
func (ls limits) ask(model string, now time.Time) (asked []Limit, of []*limit) {
	for i, l := range ls {
		if l == nil {
			continue
		}
		a := Limit{
			PerReplica: l.perReplica, Replicas: l.replicas,
			Expected: l.spared.left(now) * float64(l.routers), Owed: l.owed(now),
		}
		if i == ofModel {
			a.Model = model
		}
		asked, of = append(asked, a), append(of, l)
	}
	return asked, of
}

// resultOf returns the result of a request when so much is left.
func resultOf(left []Left) Result {
	r := unlimited
	for _, l := range left {
		r.include(l.Tokens, l.PerMinute)
	}
	r.take()
	return r
}
