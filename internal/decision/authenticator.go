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

// authenticator finds the caller of a request: by the identity that a filter of Envoy has
// set, by its key, or by the token with which a sibling redirected it here.
type authenticator struct {
	keys       *access.Store // nil: no keys file
	identities bool          // filters of Envoy may set the caller's identity
	forward    bool          // engines get the callers' keys
	secrets    *hop.Secrets  // nil: hops are counted, and their tokens not signed
	rejected   func(error)   // called with what is wrong with a token
}

// open reports whether requests need neither a key nor an identity.
func (a *authenticator) open() bool { return a.keys == nil && !a.identities }

// strips reports whether engines do not get the callers' keys.
func (a *authenticator) strips() bool { return !a.open() && !a.forward }

// authenticate sets the caller, the hops and the forwarding of a request in its call.
func (a *authenticator) authenticate(c *call, cr extproc.Credentials) *refusal.Refusal {
	c.forward.StripKeys = a.strips()
	token, stripped := sitemap.Hops(cr.PathAndQuery)
	if stripped != cr.PathAndQuery {
		c.forward.PathAndQuery = stripped
	}
	key, err := a.lookup(cr)
	if err != nil {
		return refusal.Unauthorized(err.Error())
	}
	c.key = key
	switch {
	case token == "":
	case a.secrets == nil:
		c.hops = sitemap.HopCount(token)
	case key != nil && !a.open():
		// The request has its own key, so the token is needed only for the number of hops.
		// With an invalid token the request is not redirected again.
		c.hops = sitemap.MaxHops
		if v, err := a.secrets.VerifyHead(token, cr.Method, cr.PathAndQuery); err == nil {
			c.hops = v.Hops
		}
	default:
		v, err := a.secrets.VerifyHead(token, cr.Method, cr.PathAndQuery)
		if err != nil {
			return a.reject(err)
		}
		c.verified, c.hops = v, v.Hops
		if c.key = a.byID(v.KeyID); c.key == nil {
			return refusal.Unauthorized("the key of the redirected request is not known at this site")
		}
	}
	switch {
	case c.key != nil:
		return nil
	case a.keys == nil:
		return refusal.Unauthorized(needsIdentity)
	}
	return refusal.Unauthorized(needsKey)
}

// checkBody refuses a body with a hash that a token was not made for.
func (a *authenticator) checkBody(v *hop.Verified, sum [sha256.Size]byte) *refusal.Refusal {
	if err := v.VerifyBody(sum); err != nil {
		return a.reject(err)
	}
	return nil
}

// recheck refuses a caller whose key was revoked or has expired since authenticate.
func (a *authenticator) recheck(key *access.Key) *refusal.Refusal {
	if a.keys == nil {
		return nil
	}
	if now := a.keys.Current().Renew(key); now == nil || now.Expired(time.Now()) {
		return refusal.Unauthorized("the API key is no longer valid")
	}
	return nil
}

// lookup returns the key of a request by its identity, or if it has none by the key in its
// headers. It returns nil for a request with neither. An error means that the identity is
// not valid.
func (a *authenticator) lookup(cr extproc.Credentials) (*access.Key, error) {
	var keys *access.Keys
	if a.keys != nil {
		keys = a.keys.Current()
	}
	switch identity, there, err := identityOf(cr.Metadata); {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", access.ErrIdentity, err)
	case there:
		return keys.Identify(identity)
	case a.open():
		return access.Anonymous(), nil
	case keys == nil:
		return nil, nil
	}
	key, _ := keys.Lookup(cr.Authorization, cr.APIKey, time.Now())
	return key, nil
}

// byID returns the key with the id that another site has authenticated, nil when this site's
// file does not have it or it has expired.
func (a *authenticator) byID(id string) *access.Key {
	switch {
	case a.open():
		return access.Anonymous()
	case a.keys == nil:
		return nil
	}
	if key := a.keys.Current().ByID(id); key != nil && !key.Expired(time.Now()) {
		return key
	}
	return nil
}

func (a *authenticator) reject(err error) *refusal.Refusal {
	a.rejected(err)
	return refusal.Unauthorized(err.Error())
}
