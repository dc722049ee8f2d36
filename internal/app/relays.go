// SPDX-License-Identifier: Apache-2.0

package app

import (
	"crypto/x509"
	"fmt"
	"net/http"

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

// warnOfSilentHolds logs which models get no keepalives, because --relay does not lead to
// their destination.
func (a *App) warnOfSilentHolds() {
	if a.c.WakeKeepalive == 0 {
		return
	}
	if a.c.Gateway() != nil {
		a.warnOfSilent(policy.Replica, "their keepalives need the relay lane of Holdgate's own bootstrap as --relay")
		return
	}
	for _, silent := range []policy.Destination{policy.Route, policy.Endpoint} {
		a.warnOfSilent(silent, "set --relay to the URL of the gateway's listener for clients")
	}
}

// warnOfSilent logs the models with a destination.
func (a *App) warnOfSilent(silent policy.Destination, advice string) {
	usual := policy.Destination(a.c.Destination)
	var models []string
	for _, model := range a.policies().Models() {
		if usual != silent && a.policies().Destination(model, usual) == silent {
			models = append(models, model)
		}
	}
	if usual == silent || len(models) > 0 {
		a.log.Warn().Str("destination", string(silent)).Strs("models", models).Bool("all_others", usual == silent).
			Msg("held requests for models with this destination get no keepalives: " + advice)
	}
}
