// SPDX-License-Identifier: Apache-2.0

package access

import (
	"errors"
	"fmt"
)

// Identity is what somebody else has found out about the sender of a request.
type Identity struct {
	Tenant string
	ID     string   // empty: it has none
	Models []string // nil: all; an empty list: none
	Scopes []string // of sites; nil: all; an empty list: none
}

// ErrIdentity is the class of what Identify refuses.
var ErrIdentity = errors.New("the identity is bad")

// What the lines of identities and of keys begin with.
const (
	identityLine = "\x00"
	keyLine      = "\x01"
)

// Identify makes a key of an identity. It shares the quota, and the share of a model,
// with the key that has its id, if there is one. k may be nil.
func (k *Keys) Identify(i Identity) (*Key, error) {
	if err := i.check(); err != nil {
		return nil, err
	}
	key := &Key{
		ID: i.ID, Name: i.ID, Tenant: i.Tenant, Share: 1, models: set(i.Models), Scopes: i.Scopes,
		RedirectNever: i.Scopes != nil && len(i.Scopes) == 0,
		line:          identityLine + i.Tenant + identityLine + i.ID,
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
