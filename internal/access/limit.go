// SPDX-License-Identifier: Apache-2.0

package access

import "time"

// limit is a limit of requests per minute for each replica of a model. The limit of a key over
// all models is one with a single replica.
type limit struct {
	perReplica int
	replicas   int // the number of replicas for which part has its tokens; 0 before the first request

	// maxReplicas is the highest number of replicas for which tokens were added in the
	// minute that ends at until. A replica that comes and goes must not add tokens more than
	// once a minute.
	maxReplicas int
	until       time.Time

	// part has the tokens that this router may charge by itself: all of them, or with a
	// Limiter its part of what the site had left when this router last asked.
	part bucket
	// spared is what part would be if this router had charged nothing by itself. Only a
	// Limiter needs it.
	spared  bucket
	known   uint64  // how many answers were in time
	routers int     // among which the limit is divided
	telling float64 // of the tokens that are owed, those of which running calls tell the site
}

// adapt adapts the limit to a number of replicas, and reports whether it applies. When the
// number changes, the bucket keeps its tokens up to its new size, and each new replica adds the
// tokens of one minute. routers is used only for the first request.
func (l *limit) adapt(replicas, routers int, now time.Time) bool {
	if l == nil || replicas <= 0 {
		return false
	}
	switch l.replicas {
	case replicas:
	case 0:
		l.routers = routers
		l.part = newBucket(l.partOf(replicas), now)
		l.spared = l.part
	default:
		added := l.added(replicas, now) / float64(l.routers)
		for _, b := range [...]*bucket{&l.part, &l.spared} {
			b.resize(l.partOf(replicas), now)
			b.add(added, now)
		}
	}
	l.replicas = replicas
	if replicas >= l.maxReplicas || !now.Before(l.until) {
		l.maxReplicas, l.until = replicas, now.Add(time.Minute)
	}
	return true
}

// added returns how many tokens new replicas add.
func (l *limit) added(replicas int, now time.Time) float64 {
	before := l.replicas
	if now.Before(l.until) {
		before = max(before, l.maxReplicas)
	}
	return float64(max(0, l.perMinute(replicas)-l.perMinute(before)))
}

// perMinute returns the limit for a number of replicas.
func (l *limit) perMinute(replicas int) int {
	if replicas > maxPerMinute/l.perReplica {
		return maxPerMinute
	}
	return l.perReplica * replicas
}

// partOf returns this router's part of the limit for a number of replicas.
func (l *limit) partOf(replicas int) float64 {
	return float64(l.perMinute(replicas)) / float64(l.routers)
}

// change returns the limit after a change of the file: to another limit, which is not used yet,
// with the tokens of this one. Either may be nil.
func (l *limit) change(to *limit, now time.Time) *limit {
	if l == nil || to == nil || l.replicas == 0 {
		return to
	}
	l.perReplica = to.perReplica
	for _, b := range [...]*bucket{&l.part, &l.spared} {
		b.resize(l.partOf(l.replicas), now)
	}
	return l
}

// owed returns how many tokens this router has charged by itself that the site does not know
// of, and no running call tells it. What the part has gained since is taken off, because a
// full bucket owes nothing.
func (l *limit) owed(now time.Time) float64 {
	return max(0, l.charged(now)-l.telling)
}

// told takes tokens of which the site was told from those that are owed.
func (l *limit) told(n float64, now time.Time) {
	l.spared.add(-min(n, l.charged(now)), now)
}

// charged returns how many tokens of the part this router has charged by itself.
func (l *limit) charged(now time.Time) float64 { return max(0, l.spared.left(now)-l.part.left(now)) }

// know sets what the site had left at a time: this router's part of it is for the time when the
// site cannot be asked. What this router has charged by itself is taken off.
func (l *limit) know(left Left, at time.Time, routers int, now time.Time) {
	charged := l.charged(now)
	l.routers = routers
	l.part = bucket{perMinute: left.PerMinute / float64(routers), tokens: left.Tokens / float64(routers), at: at}
	l.spared = l.part
	l.part.add(-charged, now)
}
