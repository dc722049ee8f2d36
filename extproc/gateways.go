// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// Gateway is an Envoy that calls the router without the name of a lane: one that the router's
// own bootstrap did not make.
type Gateway struct {
	// Envoy is the name by which Envoys are told apart.
	Envoy string
	// Requests is how many requests it has sent to endpoints of the router.
	Requests uint64
	// LastSeen is when the last of them came.
	LastSeen time.Time
	// Log reports whether its access log tells when requests have ended. Without it they have
	// no slots once they are sent on.
	Log bool
}

const (
	// maxGateways is how many are remembered.
	maxGateways = 256
	// gatewayMemory is how long one is listed after its last request, unless its log is open.
	gatewayMemory = time.Hour
)

// gateways are the Envoys that called without the name of a lane.
type gateways struct {
	mu   sync.Mutex
	seen map[string]*Gateway
}

// note notes a request of an Envoy.
func (g *gateways) note(from string, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := g.seen[from]
	if at == nil {
		if g.seen == nil {
			g.seen = map[string]*Gateway{}
		}
		if len(g.seen) >= maxGateways {
			g.forgetOldest()
		}
		at = &Gateway{Envoy: from}
		g.seen[from] = at
	}
	at.Requests++
	at.LastSeen = now
}

// forgetOldest forgets the gateway whose last request is the oldest.
func (g *gateways) forgetOldest() {
	var oldest *Gateway
	for _, at := range g.seen {
		if oldest == nil || at.LastSeen.Before(oldest.LastSeen) {
			oldest = at
		}
	}
	delete(g.seen, oldest.Envoy)
}

// Gateways returns the Envoys that sent requests recently and that the router's own bootstrap
// did not make, by name.
func (s *Server) Gateways() []Gateway {
	g := &s.gateways
	g.mu.Lock()
	defer g.mu.Unlock()
	var list []Gateway
	for name, at := range g.seen {
		log := s.logs.tell(name)
		if !log && time.Since(at.LastSeen) > gatewayMemory {
			delete(g.seen, name)
			continue
		}
		list = append(list, Gateway{Envoy: name, Requests: at.Requests, LastSeen: at.LastSeen, Log: log})
	}
	slices.SortFunc(list, func(a, b Gateway) int { return strings.Compare(a.Envoy, b.Envoy) })
	return list
}
