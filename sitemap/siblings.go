// SPDX-License-Identifier: Apache-2.0

package sitemap

import (
	"encoding/binary"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/holdgate/holdgate/internal/target"
)

// siblings is the data of the sites in the form that a choice needs: with numbers instead of
// names.
type siblings struct {
	numbers map[string]int32 // a site's index in core.sites
	hashes  []uint64         // of each site's id
	siteOf  []int32          // the site of each placement; -1 for one that is not listed
}

func newSiblings(sites []Site, placements []Placement) siblings {
	sb := siblings{
		numbers: make(map[string]int32, len(sites)),
		hashes:  make([]uint64, len(sites)),
		siteOf:  make([]int32, len(placements)),
	}
	for i, s := range sites {
		sb.numbers[s.ID] = int32(i)
		sb.hashes[i] = xxhash.Sum64String(s.ID)
	}
	for i, p := range placements {
		sb.siteOf[i] = -1
		if n, listed := sb.numbers[p.Site]; listed {
			sb.siteOf[i] = n
		}
	}
	return sb
}

// inScope reports whether requests of a key with these scopes may be sent to a site. Without
// scopes they may be sent to all sites; otherwise the key and the site must have a scope in
// common.
func (c *core) inScope(site int32, scopes []string) bool {
	return len(scopes) == 0 || intersect(c.sites[site].Scopes, scopes)
}

// intersect reports whether the lists have an element in common. The first must be sorted.
func intersect(sorted, others []string) bool {
	for _, s := range others {
		if _, found := slices.BinarySearch(sorted, s); found {
			return true
		}
	}
	return false
}

// placedAtSibling reports whether a target is placed at a site that is not this one.
func (c *core) placedAtSibling(t target.Target, site string) bool {
	s := c.targets[t]
	i, found := slices.BinarySearchFunc(c.placements[s.first:s.end], site, func(p Placement, site string) int {
		return compare(p.Target, p.Site, t, site)
	})
	return found && s.first+i != s.here
}

// requestHash returns the part of a rank that is the same for all sites.
func requestHash(key string, t target.Target) uint64 {
	var b [17]byte
	binary.LittleEndian.PutUint64(b[0:], xxhash.Sum64String(key))
	binary.LittleEndian.PutUint64(b[8:], xxhash.Sum64String(t.Model))
	b[16] = byte(t.Kind)
	return xxhash.Sum64(b[:])
}

// rank returns the rank of a site for a request: the site with the highest is its first
// home. It depends only on the request and the site (rendezvous hashing), so adding or
// removing a site moves no request between two others. Both hashes are well distributed, so
// it is enough to mix their bits with the finalizer of SplitMix64. The result is never 0.
func rank(request, site uint64) uint64 {
	x := request ^ site
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return (x ^ x>>31) | 1
}
