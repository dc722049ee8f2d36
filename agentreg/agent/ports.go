// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"
)

// maxPortTries is how many ports an engine is started with in one wake.
const maxPortTries = 3

// Ports gives the engines of this process loopback ports, each one its own. The zero
// value has given none.
type Ports struct {
	mu    sync.Mutex
	given map[netip.AddrPort]struct{}
}

// choose listens on a port that no engine was given, and gives it to one for good.
func (p *Ports) choose(ctx context.Context) (net.Listener, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.given == nil {
		p.given = map[netip.AddrPort]struct{}{}
	}
	var given []net.Listener // the system does not choose their ports again while they are open
	defer func() {
		for _, l := range given {
			_ = l.Close()
		}
	}()
	for {
		l, err := listenOn(ctx, netip.AddrPortFrom(loopback, 0))
		if err != nil {
			return nil, fmt.Errorf("finding a free port for the engine: %w", err)
		}
		if _, ok := p.given[addressOf(l)]; !ok {
			p.given[addressOf(l)] = struct{}{}
			return l, nil
		}
		given = append(given, l)
	}
}

var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

func listenOn(ctx context.Context, at netip.AddrPort) (net.Listener, error) {
	return new(net.ListenConfig).Listen(ctx, "tcp", at.String())
}

func addressOf(l net.Listener) netip.AddrPort {
	return netip.MustParseAddrPort(l.Addr().String())
}

// claimPort listens on the port of the engine's next start: the one that it had, or
// another one where that is in use. Whoever starts the engine calls release before.
// Without Ports it does not listen, but waits for the engine's address to be free.
func (a *agent) claimPort(ctx context.Context) (release func(), err error) {
	if a.cfg.Ports == nil {
		return func() {}, a.awaitFreePort(ctx)
	}
	l, err := listenOn(ctx, a.engineAt())
	if err != nil {
		if l, err = a.cfg.Ports.choose(ctx); err != nil {
			return nil, err
		}
		at := addressOf(l)
		a.at.Store(&at)
		a.core.setAddress(at.String(), waking)
		a.log.Info().Stringer("address", at).Msg("the engine's port is in use: choosing another one")
	}
	return func() { _ = l.Close() }, nil
}

// fillPort replaces each {port} by the engine's port.
func (a *agent) fillPort(words []string) []string {
	if a.cfg.Ports == nil {
		return words
	}
	port := strconv.Itoa(int(a.engineAt().Port()))
	filled := make([]string, len(words))
	for i, w := range words {
		filled[i] = strings.ReplaceAll(w, "{port}", port)
	}
	return filled
}

// awaitFreePort waits up to the stop grace for the engine's address to be free: an engine
// of an earlier agent may be about to end. Anything else that answers there would be
// taken for the engine.
func (a *agent) awaitFreePort(ctx context.Context) error {
	address := a.engineAt().String()
	begin := time.Now()
	for {
		dialer := net.Dialer{Timeout: time.Second}
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if err != nil {
			return ctx.Err()
		}
		_ = conn.Close()
		if time.Since(begin) > a.cfg.StopGrace {
			return &failure{reason: "the engine's port is in use", detail: "something else listens on " + address}
		}
		if !pause(ctx, eagerPoll) {
			return ctx.Err()
		}
	}
}
