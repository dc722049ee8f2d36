// SPDX-License-Identifier: Apache-2.0

package app

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/internal/access"
	"github.com/holdgate/holdgate/internal/admission"
	"github.com/holdgate/holdgate/internal/config"
	"github.com/holdgate/holdgate/internal/hop"
	"github.com/holdgate/holdgate/internal/refusal"
	"github.com/holdgate/holdgate/sitemap"
)

const (
	needsKey      = "a valid API key is needed, as a bearer token in Authorization or in x-api-key"
	needsIdentity = "the request has no identity: it was not authenticated on its way here"
)

// caller is what the decision keeps of who sent a request.
type caller struct {
	key  *access.Key
	hops int // how often the request was redirected before

	// The quota is charged once per request, however often it is decided.
	charged   bool
	rateLimit string // what the quota still had; empty: it has none

	held bool // a hold of it was counted
	wish admission.Attempts
	seq  uint64 // its place, once it had a slot without waiting for it; 0: none
}

// authenticator says who may come in: it knows the keys and the tokens of redirected
// requests.
type authenticator struct {
	keys       *access.Store // nil: there are none
	identities bool          // filters of Envoy may say who sent a request
	forward    bool          // callers' keys are passed on to engines
	secrets    *hop.Secrets  // nil: hops are only counted
	rejected   *prometheus.CounterVec
}

func newAuthenticator(c *config.Serve, keys *access.Store, secrets *hop.Secrets, reg prometheus.Registerer) *authenticator {
	d := &authenticator{keys: keys, identities: c.IdentityMetadata != "", forward: c.ForwardAuthorization, secrets: secrets}
	d.rejected = promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
		Name: c.MetricsPrefix + "hop_tokens_rejected_total",
		Help: "Tokens of redirected requests that were not accepted, by what was wrong.",
	}, []string{"reason"})
	for _, err := range []error{hop.ErrForged, hop.ErrExpired, hop.ErrMismatch} {
		d.rejected.WithLabelValues(hop.Class(err))
	}
	return d
}

// open says whether everybody is let in.
func (d *authenticator) open() bool { return d.keys == nil && !d.identities }

// Admit finds the caller of a request by the identity that Envoy found out, by its
// key, or by the token with which a sibling sent it here.
func (d *authenticator) Admit(c extproc.Credentials) extproc.Admission {
	a := extproc.Admission{StripKeys: !d.open() && !d.forward}
	token, stripped := sitemap.Hops(c.PathAndQuery)
	if stripped != c.PathAndQuery {
		a.PathAndQuery = stripped
	}
	key, err := d.lookup(c)
	if err != nil {
		return extproc.Admission{Refusal: refusal.Unauthorized(err.Error())}
	}
	known := key != nil
	who := &caller{key: key}
	switch {
	case token == "":
	case d.secrets == nil:
		who.hops = sitemap.HopCount(token)
	case known && !d.open():
		// The key counts, whatever the token is; a good one says how often the
		// request was sent on, and after a bad one it stays here.
		who.hops = sitemap.MaxHops
		if v, err := d.secrets.VerifyHead(token, c.Method, c.PathAndQuery); err == nil {
			who.hops = v.Hops
		}
	default:
		v, err := d.secrets.VerifyHead(token, c.Method, c.PathAndQuery)
		if err != nil {
			return extproc.Admission{Refusal: d.reject(err)}
		}
		a.CheckBody = func(sum [sha256.Size]byte) *refusal.Refusal {
			if err := v.VerifyBody(sum); err != nil {
				return d.reject(err)
			}
			return nil
		}
		who.hops = v.Hops
		if who.key, known = d.byID(v.KeyID); !known {
			return extproc.Admission{Refusal: refusal.Unauthorized("the key of the redirected request is not known at this site")}
		}
	}
	switch {
	case !known && d.keys == nil:
		return extproc.Admission{Refusal: refusal.Unauthorized(needsIdentity)}
	case !known:
		return extproc.Admission{Refusal: refusal.Unauthorized(needsKey)}
	}
	a.Caller = extproc.Caller{TenantID: who.key.Tenant, KeyID: who.key.ID, Detail: who}
	return a
}

// Recheck refuses a request whose key was revoked while it waited.
func (d *authenticator) Recheck(r *extproc.Request) *refusal.Refusal {
	who, known := r.Caller.Detail.(*caller)
	if d.keys == nil || !known {
		return nil
	}
	if now := d.keys.Current().Renew(who.key); now == nil || now.Expired(time.Now()) {
		return refusal.Unauthorized("the API key is no longer valid")
	}
	return nil
}

// charge counts a request against its key's quotas. It returns a refusal when they
// have no room.
func (c *caller) charge(model string, replicas int) *refusal.Refusal {
	if c.charged {
		return nil
	}
	result := c.key.Charge(model, replicas, time.Now())
	if result.Remaining != access.Unlimited {
		c.rateLimit = strconv.Itoa(result.Remaining)
	}
	if !result.OK {
		return refusal.RateLimited(result.RetryAfter)
	}
	c.charged = true
	return nil
}

// lookup finds who sent a request: by its identity, and without one by its key; nil
// when it has neither. The error is of an identity that is none.
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

// byID finds the key that another site has authenticated, in our own file.
func (d *authenticator) byID(id string) (*access.Key, bool) {
	switch {
	case d.open():
		return access.Anonymous(), true
	case d.keys == nil:
		return nil, false
	}
	key := d.keys.Current().ByID(id)
	return key, key != nil && !key.Expired(time.Now())
}

func (d *authenticator) reject(err error) *refusal.Refusal {
	d.rejected.WithLabelValues(hop.Class(err)).Inc()
	return refusal.Unauthorized(err.Error())
}
