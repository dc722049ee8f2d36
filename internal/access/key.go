// SPDX-License-Identifier: Apache-2.0

package access

import (
	"crypto/sha256"
	"time"
)

// DefaultTenant is the tenant of all callers where there is no keys file.
const DefaultTenant = "default"

// Key is an authenticated caller. It is immutable, its lists included.
type Key struct {
	// ID is the same in every version of the keys file. It is empty for Anonymous,
	// and for an identity that has none.
	ID     string
	Name   string // for display; the id where the file has none
	Tenant string
	Scopes []string // of sites; empty: all sites
	// RedirectNever: the client cannot follow redirects, or may not be sent to any site.
	RedirectNever bool
	// Share is the fraction of a model's token budget that the key may reserve: above 0, and
	// 1 if the file does not limit it.
	Share float64

	hash     [sha256.Size]byte   // zeros: not from a keys file
	models   map[string]struct{} // nil: all
	expires  time.Time           // zero: never
	quota    *quota              // nil: none
	queueKey string
}

// anonymous is the key of all callers without a key.
var anonymous = &Key{Tenant: DefaultTenant, Share: 1}

// Anonymous returns the key of all callers where there is no keys file. It has the default
// tenant and no id, and allows everything.
func Anonymous() *Key { return anonymous }

// Allowed reports whether the key may use a model. An alias is not resolved.
func (k *Key) Allowed(model string) bool {
	if k.models == nil {
		return true
	}
	_, ok := k.models[model]
	return ok
}

// Expires returns the first moment at which the key is no longer valid; ok is false when
// it does not expire.
func (k *Key) Expires() (at time.Time, ok bool) { return k.expires, !k.expires.IsZero() }

// QueueKey returns the key by which waiting requests share turns and limits, empty for
// Anonymous. It contains the hash, not the id, because another key may get the same id. An
// identity has a queue key of its own, or one for all of its tenant if it has no id.
func (k *Key) QueueKey() string { return k.queueKey }

// Expired reports whether the key is no longer valid.
func (k *Key) Expired(now time.Time) bool { return !k.expires.IsZero() && !now.Before(k.expires) }
