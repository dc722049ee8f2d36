// SPDX-License-Identifier: Apache-2.0

package sitemap

import (
	"encoding/binary"
	"slices"

	"github.com/cespare/xxhash/v2"
)

// scopeBits is how many scopes a set in one word tells apart.
const scopeBits = 64

// siblings is what a choice reads of the sites, prepared so that it compares
// numbers and no names.
type siblings struct {
	numbers map[string]int32 // a site's index in core.sites
	facts   []siteFacts      // of each site
	at      []int32          // the site of each placement; -1 for one that is not listed

	// scopes numbers all scopes of the map. A set of scopes has the bit of each
	// one's number, modulo 64: sets without a common bit have no common scope,
	// and when there are at most 64 scopes the reverse holds as well.
	scopes map[string]int
}

type siteFacts struct {
	hash   uint64
	scopes uint64 // a set
}

func newSiblings(sites []Site, placements []Placement) siblings {
	sb := siblings{
		numbers: make(map[string]int32, len(sites)),
		facts:   make([]siteFacts, len(sites)),
		at:      make([]int32, len(placements)),
		scopes:  map[string]int{},
	}
	for i, s := range sites {
		sb.numbers[s.ID] = int32(i)
		for _, scope := range s.Scopes {
			if _, known := sb.scopes[scope]; !known {
				sb.scopes[scope] = len(sb.scopes)
			}
		}
		sb.facts[i] = siteFacts{hash: xxhash.Sum64String(s.ID), scopes: sb.set(s.Scopes)}
	}
	for i, p := range placements {
		sb.at[i] = -1
		if n, listed := sb.numbers[p.Site]; listed {
			sb.at[i] = n
		}
	}
	return sb
}

// set gives the set of those scopes that the map knows.
func (sb *siblings) set(scopes []string) uint64 {
	var set uint64
	for _, s := range scopes {
		if n, known := sb.scopes[s]; known {
			set |= 1 << (n % scopeBits)
		}
	}
	return set
}

// reach is which sites a key may be sent to.
type reach struct {
	all    bool
	exact  bool // set says it all
	set    uint64
	scopes []string
}

// reach of a key without scopes is every site.
func (c *core) reach(scopes []string) reach {
	return reach{
		all:    len(scopes) == 0,
		exact:  len(c.siblings.scopes) <= scopeBits,
		set:    c.siblings.set(scopes),
		scopes: scopes,
	}
}

// within tells whether a site is in reach. A site without scopes is in that of
// keys without scopes alone.
func (c *core) within(site int32, r *reach) bool {
	return r.all || c.siblings.facts[site].scopes&r.set != 0 && (r.exact || meet(c.sites[site].Scopes, r.scopes))
}

// meet needs the first list sorted.
func meet(sorted, others []string) bool {
	for _, s := range others {
		if _, found := slices.BinarySearch(sorted, s); found {
			return true
		}
	}
	return false
}

// atSibling tells whether another site has a placement of a target.
func (c *core) atSibling(t Target, site string) bool {
	s := c.targets[t]
	i, found := slices.BinarySearchFunc(c.placements[s.first:s.end], site, func(p Placement, site string) int {
		return compare(p.Target, p.Site, t, site)
	})
	return found && s.first+i != s.here
}

// requestHash is the part of a rank that is the same for all sites.
func requestHash(key string, t Target) uint64 {
	var b [17]byte
	binary.LittleEndian.PutUint64(b[0:], xxhash.Sum64String(key))
	binary.LittleEndian.PutUint64(b[8:], xxhash.Sum64String(t.Model))
	b[16] = byte(t.Kind)
	return xxhash.Sum64(b[:])
}

// rank is a site's place in the order for a request: the highest is its first
// home. It depends on this request and this site alone (rendezvous hashing), so
// a site that comes or goes moves no request between two others. The two hashes
// are good ones, so what joins them need only spread each bit over all: it is
// the finish of SplitMix64. The result is never 0.
func rank(request, site uint64) uint64 {
	x := request ^ site
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return (x ^ x>>31) | 1
}
