// SPDX-License-Identifier: Apache-2.0

package app

import (
	"crypto/x509"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"

	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/internal/certs"
	"github.com/holdgate/holdgate/internal/config"
	"github.com/holdgate/holdgate/internal/policy"
)

// relays returns the clients of Envoy's relay lane and of a gateway. --relay is one of them,
// and the other is nil.
func (a *App) relays() (lane, gateway http.RoundTripper) {
	if at := a.c.Gateway(); at != nil {
		return nil, extproc.NewGateway(at, a.relayCAs)
	}
	return extproc.NewRelay(config.Address(a.c.Relay)), nil
}

// relayCAs returns the authorities of --relay-ca-file, nil without it.
func relayCAs(path string) (*x509.CertPool, error) {
	if path == "" {
		return nil, nil
	}
	roots, err := certs.ReadAuthorities(path)
	if err != nil {
		return nil, fmt.Errorf("reading the authorities of the gateway: %w", err)
	}
	return roots, nil
}

// silentHold is a destination whose held requests get no keepalives, because --relay does not
// lead there.
type silentHold struct {
	destination policy.Destination
	models      []string // those whose policy names it
	others      bool     // all models whose policy names none
	advice      string
}

// silentHolds returns the destinations without keepalives that models have.
func silentHolds(c *config.Serve, p *policy.Policy) []silentHold {
	if c.WakeKeepalive == 0 {
		return nil // no held request gets any
	}
	usual := policy.Destination(c.Destination)
	silent := map[policy.Destination]*silentHold{}
	add := func(destination policy.Destination) *silentHold {
		hold := &silentHold{destination: destination, advice: "set --relay to the URL of the gateway's listener for clients"}
		if destination == policy.Replica {
			hold.advice = "their keepalives need the relay lane of Holdgate's own bootstrap as --relay"
		}
		if silent[destination] == nil {
			silent[destination] = hold
		}
		return silent[destination]
	}
	leads := func(to policy.Destination) bool { return (c.Gateway() == nil) == (to == policy.Replica) }
	if !leads(usual) {
		add(usual).others = true
	}
	for _, model := range p.Models() {
		if to := p.Destination(model, usual); to != usual && !leads(to) {
			hold := add(to)
			hold.models = append(hold.models, model)
		}
	}
	var list []silentHold
	for _, to := range slices.Sorted(maps.Keys(silent)) {
		list = append(list, *silent[to])
	}
	return list
}

// warnOfSilentHolds logs which models get no keepalives.
func (a *App) warnOfSilentHolds() {
	for _, s := range silentHolds(a.c, a.policies()) {
		a.log.Warn().Str("destination", string(s.destination)).Strs("models", s.models).Bool("all_others", s.others).
			Msg("held requests for models with this destination get no keepalives: " + s.advice)
	}
}

// Warnings returns what in a configuration, and in the files that it names, is valid but
// seldom meant.
func Warnings(c *config.Serve) []string {
	list := c.Warnings()
	var p *policy.Policy
	if c.PolicyFile != "" {
		text, err := os.ReadFile(c.PolicyFile)
		if err != nil {
			return list // Check reports it
		}
		if p, err = policy.Parse(text); err != nil {
			return list // Check reports it
		}
	}
	for _, s := range silentHolds(c, p) {
		of := "models whose policy names no destination"
		if !s.others {
			of = fmt.Sprintf("%q", s.models)
		}
		list = append(list, fmt.Sprintf("destination %s: held requests of %s get no keepalives: %s", s.destination, of, s.advice))
	}
	return list
}

// gateways returns the gateways that called recently.
func (a *App) gateways() []extproc.Gateway { return a.data.Gateways() }
