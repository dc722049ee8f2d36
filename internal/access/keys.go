// SPDX-License-Identifier: Apache-2.0

package access

import (
	"crypto/sha256"
	"crypto/subtle"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"
)

const (
	// maxKey is the length of the longest key in bytes. A longer one is not looked up.
	maxKey = 4096
	// usualKey is the length up to which a key is hashed without an allocation.
	usualKey = 256
)

// Keys has the keys of a keys file. It is immutable.
type Keys struct {
	byHash  map[[sha256.Size]byte]*Key
	byID    map[string]*Key
	tenants []string
}

func newKeys() *Keys {
	return &Keys{byHash: map[[sha256.Size]byte]*Key{}, byID: map[string]*Key{}}
}

func (k *Keys) add(key *Key) {
	if key.Name == "" {
		key.Name = key.ID
	}
	key.queueKey = keyQueue + string(key.hash[:])
	k.byHash[key.hash], k.byID[key.ID] = key, key
}

// finish must be called once, after the last add.
func (k *Keys) finish() {
	tenants := map[string]struct{}{}
	for _, key := range k.byID {
		tenants[key.Tenant] = struct{}{}
	}
	k.tenants = slices.Sorted(maps.Keys(tenants))
}

// Lookup returns the key in the values of the headers Authorization (only Bearer) and
// x-api-key, which may be empty. If both headers have a key, the bearer token counts unless
// it is not found. A key that is not in the file, or has expired, is not found.
func (k *Keys) Lookup(authorization, apiKey string, now time.Time) (*Key, bool) {
	for _, secret := range [...]string{bearerOf(authorization), strings.Trim(apiKey, " \t")} {
		if key := k.find(secret, now); key != nil {
			return key, true
		}
	}
	return nil, false
}

// find returns the key with a secret, or nil. It looks up the hash of the secret, so that the
// time that it takes reveals nothing about the keys in the file. The hashes are compared in
// constant time.
func (k *Keys) find(secret string, now time.Time) *Key {
	if secret == "" || len(secret) > maxKey {
		return nil
	}
	var b [usualKey]byte
	sum := sha256.Sum256(append(b[:0], secret...))
	key := k.byHash[sum]
	if key == nil || subtle.ConstantTimeCompare(key.hash[:], sum[:]) != 1 || key.Expired(now) {
		return nil
	}
	return key
}

// bearerOf returns the token of an Authorization header, empty for other schemes.
func bearerOf(authorization string) string {
	scheme, token, _ := strings.Cut(strings.Trim(authorization, " \t"), " ")
	if !strings.EqualFold(scheme, "bearer") {
		return ""
	}
	return strings.Trim(token, " \t")
}

// ByID returns the key with an id, or nil. The key may have expired.
func (k *Keys) ByID(id string) *Key { return k.byID[id] }

// Valid reports whether the key with a QueueKey is still valid. An identity always is,
// because it is not from a keys file.
func (k *Keys) Valid(queueKey string, now time.Time) bool {
	if strings.HasPrefix(queueKey, identityQueue) {
		return true
	}
	var hash [sha256.Size]byte
	copy(hash[:], strings.TrimPrefix(queueKey, keyQueue))
	key := k.byHash[hash]
	return key != nil && !key.Expired(now)
}

// NextExpiry returns the first time after now at which a key expires; ok is false when
// none does.
func (k *Keys) NextExpiry(now time.Time) (next time.Time, ok bool) {
	for _, key := range k.byID {
		at, expires := key.Expires()
		if expires && at.After(now) && (!ok || at.Before(next)) {
			next, ok = at, true
		}
	}
	return next, ok
}

// Renew returns the current version of a key that is from an older version of the file. It
// returns nil when the key was revoked: no key has its hash, even if another one has its id.
// It returns a key that is not from a keys file unchanged.
func (k *Keys) Renew(old *Key) *Key {
	if old.hash == [sha256.Size]byte{} {
		return old
	}
	return k.byHash[old.hash]
}

// Models yields for each key the models that it may use, and those in its quota.
func (k *Keys) Models() iter.Seq[[]string] {
	return func(yield func([]string) bool) {
		for _, key := range k.byID {
			if !yield(slices.Collect(maps.Keys(key.models))) || key.quota != nil && !yield(slices.Collect(maps.Keys(key.quota.models))) {
				return
			}
		}
	}
}

// Tenants returns the tenants of all keys in alphabetical order. The list must not be
// changed.
func (k *Keys) Tenants() []string { return k.tenants }
