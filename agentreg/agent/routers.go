// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// resolveEvery is how often a router's name is looked up again.
const resolveEvery = 30 * time.Second

// keepLinks runs a link to every address of one router until ctx ends.
func (a *agent) keepLinks(ctx context.Context, router string) {
	var links sync.WaitGroup
	defer links.Wait()
	if strings.HasPrefix(router, "unix://") {
		(&link{agent: a, address: router, host: "localhost", group: &links, gone: func() bool { return false }}).start(ctx)
		return
	}
	var mu sync.Mutex
	var current []string
	linked := map[string]bool{}
	problem := ""
	for first := true; ; first = false {
		host, found, err := a.addresses(ctx, router)
		switch {
		case ctx.Err() != nil:
			return
		case first && errors.Is(err, errTLS):
			a.fail(err)
			return
		case err != nil && err.Error() != problem:
			problem = err.Error()
			a.log.Warn().Str("router", router).Err(err).Msg("the name of the router cannot be resolved")
		case err == nil:
			problem = ""
			mu.Lock()
			current = found
			for _, address := range found {
				if linked[address] {
					continue
				}
				linked[address] = true
				(&link{agent: a, address: address, host: host, group: &links, gone: func() bool {
					mu.Lock()
					defer mu.Unlock()
					linked[address] = slices.Contains(current, address)
					return !linked[address]
				}}).start(ctx)
			}
			mu.Unlock()
		}
		wait := resolveEvery
		if err != nil {
			wait = maxLinkBackoff
		}
		if !pause(ctx, wait) {
			return
		}
	}
}

// addresses returns the host of a router and its addresses. Those that are not allowed
// without TLS are left out; it is an error if there are no others.
func (a *agent) addresses(ctx context.Context, router string) (host string, list []string, err error) {
	host, port, err := net.SplitHostPort(router)
	if err != nil {
		return "", nil, fmt.Errorf("reading %s: %w", router, err)
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return "", nil, fmt.Errorf("resolving %s: %w", host, err)
	}
	for _, ip := range ips {
		if ip = ip.Unmap(); ip.IsLoopback() || a.cfg.TLS.enabled() {
			list = append(list, net.JoinHostPort(ip.String(), port))
		}
	}
	if len(list) == 0 {
		return "", nil, fmt.Errorf("--router: %s: %w", router, errNeedsTLS(ips[0]))
	}
	return host, list, nil
}

// tryRouter logs a warning for each address of a router that cannot be connected to.
func (a *agent) tryRouter(ctx context.Context, router string) {
	network, list := "unix", []string{strings.TrimPrefix(router, "unix://")}
	if list[0] == router {
		var err error
		if _, list, err = a.addresses(ctx, router); err != nil {
			a.warnRouter(ctx, router, err)
			return
		}
		network = "tcp"
	}
	for _, address := range list {
		dialer := net.Dialer{Timeout: welcomeTime}
		conn, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			a.warnRouter(ctx, router, err)
			continue
		}
		_ = conn.Close()
	}
}

func (a *agent) warnRouter(ctx context.Context, router string, err error) {
	if ctx.Err() == nil {
		a.log.Warn().Str("router", router).Err(err).Str("next", "the agent connects when the engine is ready").
			Msg("no router answers: is --router right?")
	}
}
