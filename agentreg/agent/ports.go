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

// maxPortTries is how many ports are tried in one wake.
const maxPortTries = 3

// Ports chooses loopback ports for the engines of this process, a different one for each.
// The zero value is ready to use.
type Ports struct {
	mu     sync.Mutex
	chosen map[netip.AddrPort]struct{}
}

// choose listens on a free port that was not chosen before.
func (p *Ports) choose(ctx context.Context) (net.Listener, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.chosen == nil {
		p.chosen = map[netip.AddrPort]struct{}{}
	}
	var rejected []net.Listener // kept open, so that the system does not return their ports again
	defer func() {
		for _, l := range rejected {
			_ = l.Close()
		}
	}()
	for {
		l, err := listenOn(ctx, netip.AddrPortFrom(loopback, 0))
		if err != nil {
			return nil, fmt.Errorf("finding a free port for the engine: %w", err)
		}
		if _, ok := p.chosen[addressOf(l)]; !ok {
			p.chosen[addressOf(l)] = struct{}{}
			return l, nil
		}
		rejected = append(rejected, l)
	}
}

var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

func listenOn(ctx context.Context, at netip.AddrPort) (net.Listener, error) {
	return new(net.ListenConfig).Listen(ctx, "tcp", at.String())
}

func addressOf(l net.Listener) netip.AddrPort {
	return netip.MustParseAddrPort(l.Addr().String())
}

// claimPort listens on the port for the engine's next start: the same as before, or another
// one if that is in use. The caller must call release just before it starts the engine.
// Without Ports it does not listen, but waits for the engine's address to be free.
func (a *agent) claimPort(ctx context.Context) (release func(), err error) {
	if a.cfg.Ports == nil {
		return func() {}, a.awaitFreePort(ctx)
	}
	l, err := listenOn(ctx, a.engineAddress())
	if err != nil {
		if l, err = a.cfg.Ports.choose(ctx); err != nil {
			return nil, err
		}
		at := addressOf(l)
		a.engineAddr.Store(&at)
		a.core.setAddress(at.String(), waking)
		a.log.Info().Stringer("address", at).Msg("the engine's port is in use: choosing another one")
	}
	return func() { _ = l.Close() }, nil
}

// fillPort replaces each {port} with the engine's port.
func (a *agent) fillPort(words []string) []string {
	if a.cfg.Ports == nil {
		return words
	}
	port := strconv.Itoa(int(a.engineAddress().Port()))
	filled := make([]string, len(words))
	for i, w := range words {
		filled[i] = strings.ReplaceAll(w, "{port}", port)
	}
	return filled
}

// awaitFreePort waits up to the stop grace until no process listens at the engine's address,
// since it would be taken for the engine: the engine of an earlier agent may still be
// stopping.
func (a *agent) awaitFreePort(ctx context.Context) error {
	address := a.engineAddress().String()
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
