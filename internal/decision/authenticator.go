// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/internal/access"
	"github.com/holdgate/holdgate/internal/hop"
	"github.com/holdgate/holdgate/internal/refusal"
	"github.com/holdgate/holdgate/sitemap"
)

const (
	needsKey      = "a valid API key is needed, as a bearer token in Authorization or in x-api-key"
	needsIdentity = "the request has no identity: it was not authenticated on its way here"
)

// authenticator finds the caller of a request: by the identity that Envoy found out, by
// its key, or by the token with which a sibling redirected it here.
type authenticator struct {
	keys       *access.Store // nil: there are none
	identities bool          // filters of Envoy may name the caller
	forward    bool          // engines get callers' keys
	secrets    *hop.Secrets  // nil: hops are only counted
	rejected   func(error)   // a token
}

// open reports whether everybody may send requests.
func (d *authenticator) open() bool { return d.keys == nil && !d.identities }

// authenticate puts the caller of a request into its call.
func (d *authenticator) authenticate(to *call, c extproc.Credentials) *refusal.Refusal {
	to.forward.StripKeys = !d.open() && !d.forward
	token, stripped := sitemap.Hops(c.PathAndQuery)
	if stripped != c.PathAndQuery {
		to.forward.PathAndQuery = stripped
	}
	key, err := d.lookup(c)
	if err != nil {
		return refusal.Unauthorized(err.Error())
	}
	to.key = key
	switch {
	case token == "":
	case d.secrets == nil:
		to.hops = sitemap.HopCount(token)
	case key != nil && !d.open():
		// The key counts, whatever the token is. A valid one has the number of hops, and
		// with an invalid one the request stays here.
		to.hops = sitemap.MaxHops
		if v, err := d.secrets.VerifyHead(token, c.Method, c.PathAndQuery); err == nil {
			to.hops = v.Hops
		}
	default:
		v, err := d.secrets.VerifyHead(token, c.Method, c.PathAndQuery)
		if err != nil {
			return d.reject(err)
		}
		to.verified, to.hops = v, v.Hops
		if to.key = d.byID(v.KeyID); to.key == nil {
			return refusal.Unauthorized("the key of the redirected request is not known at this site")
		}
	}
	switch {
	case to.key != nil:
		return nil
	case d.keys == nil:
		return refusal.Unauthorized(needsIdentity)
	}
	return refusal.Unauthorized(needsKey)
}

// checkBody refuses a body other than the one that a token is for.
func (d *authenticator) checkBody(v *hop.Verified, sum [sha256.Size]byte) *refusal.Refusal {
	if err := v.VerifyBody(sum); err != nil {
		return d.reject(err)
	}
	return nil
}

// recheck refuses a caller whose key was revoked, or has expired, since it was found.
func (d *authenticator) recheck(key *access.Key) *refusal.Refusal {
	if d.keys == nil {
		return nil
	}
	if now := d.keys.Current().Renew(key); now == nil || now.Expired(time.Now()) {
		return refusal.Unauthorized("the API key is no longer valid")
	}
	return nil
}

// lookup returns the key of a request: by its identity, or without one by the key that it
// shows; nil when it has neither. An error means that the identity is not valid.
func (d *authenticator) lookup(c extproc.Credentials) (*access.Key, error) {
	var keys *access.Keys
	if d.keys != nil {
		keys = d.keys.Current()
	}
	switch identity, there, err := identityOf(c.Metadata); {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", access.ErrIdentity, err)
	case there:
		return keys.Identify(identity)
	case d.open():
		return access.Anonymous(), nil
	case keys == nil:
		return nil, nil
	}
	key, _ := keys.Lookup(c.Authorization, c.APIKey, time.Now())
	return key, nil
}

// byID returns the key that another site has authenticated, from this site's file; nil
// when it is not there or has expired.
func (d *authenticator) byID(id string) *access.Key {
	switch {
	case d.open():
		return access.Anonymous()
	case d.keys == nil:
		return nil
	}
	if key := d.keys.Current().ByID(id); key != nil && !key.Expired(time.Now()) {
		return key
	}
	return nil
}

func (d *authenticator) reject(err error) *refusal.Refusal {
	d.rejected(err)
	return refusal.Unauthorized(err.Error())
}
