// SPDX-License-Identifier: Apache-2.0

package access

import (
	"errors"
	"fmt"
)

// Identity is the sender of a request, authenticated by another filter of Envoy.
type Identity struct {
	Tenant string
	ID     string   // of a key; empty: none
	Models []string // nil: all; an empty list: none
	Scopes []string // of sites; nil: all; an empty list: none
}

// ErrIdentity is wrapped by the errors of Identify.
var ErrIdentity = errors.New("the identity is bad")

// The prefixes of the queue keys for identities and for keys.
const (
	identityQueue = "\x00"
	keyQueue      = "\x01"
)

// Identify returns a key for an identity. If the keys file has a key with the same id, the
// returned key has its quota, and its share of a model's budget. k may be nil.
func (k *Keys) Identify(i Identity) (*Key, error) {
	if err := i.check(); err != nil {
		return nil, err
	}
	key := &Key{
		ID: i.ID, Name: i.ID, Tenant: i.Tenant, Share: 1, models: set(i.Models), Scopes: i.Scopes,
		RedirectNever: i.Scopes != nil && len(i.Scopes) == 0,
		queueKey:      identityQueue + i.Tenant + identityQueue + i.ID,
	}
	if k != nil && k.byID[i.ID] != nil {
		key.Share, key.quota = k.byID[i.ID].Share, k.byID[i.ID].quota
	}
	return key, nil
}

func (i Identity) check() error {
	check := func(what, name string) error {
		if problem := nameProblem(name); problem != "" {
			return fmt.Errorf("%w: %s %s", ErrIdentity, what, problem)
		}
		return nil
	}
	errs := []error{check("the tenant", i.Tenant)}
	if i.ID != "" {
		errs = append(errs, check("the key id", i.ID))
	}
	for _, name := range i.Models {
		errs = append(errs, check("a model", name))
	}
	for _, name := range i.Scopes {
		errs = append(errs, check("a scope", name))
	}
	return errors.Join(errs...)
}
