// SPDX-License-Identifier: Apache-2.0

package access

import (
	"crypto/sha256"
	"time"
)

// DefaultTenant is the tenant of everybody where there is no keys file.
const DefaultTenant = "default"

// Key is who sent a request. Nobody may change it, its lists included.
type Key struct {
	// ID is the same in every version of the keys file. It is empty for Anonymous,
	// and for an identity that has none.
	ID     string
	Name   string // for people; the id where the file gives none
	Tenant string
	Scopes []string // none: all sites
	// RedirectNever: the client cannot follow a redirect, or may be sent to no site.
	RedirectNever bool
	// Share is the part of a model's admission budget that the key may have in
	// use: above 0, and 1 where the file says nothing.
	Share float64

	hash    [sha256.Size]byte   // zeros: not of a keys file
	models  map[string]struct{} // nil: all
	expires time.Time           // zero: never
	quota   *quota              // nil: none
	line    string
}

// anonymous is shared by all who have no key.
var anonymous = &Key{Tenant: DefaultTenant, Share: 1}

// Anonymous is everybody where there is no keys file: the default tenant, without
// an id, which may do everything.
func Anonymous() *Key { return anonymous }

// Allowed says whether the key may use a model, by its name and not by an alias.
func (k *Key) Allowed(model string) bool {
	if k.models == nil {
		return true
	}
	_, ok := k.models[model]
	return ok
}

// Expires gives the first moment at which the key is no longer good, ok is false
// when there is none.
func (k *Key) Expires() (at time.Time, ok bool) { return k.expires, !k.expires.IsZero() }

// Line names who waits, empty for Anonymous: a key by its hash, as its id may be given
// to another. An identity waits apart from a key with the same id; one without an id
// stands for its tenant.
func (k *Key) Line() string { return k.line }

// Expired says whether the key is no longer good.
func (k *Key) Expired(now time.Time) bool { return !k.expires.IsZero() && !now.Before(k.expires) }
