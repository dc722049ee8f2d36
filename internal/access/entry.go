// SPDX-License-Identifier: Apache-2.0

package access

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"go.yaml.in/yaml/v3"
)

// maxPerMinute is the largest quota. With it, the limit for many replicas does not overflow.
const maxPerMinute = 1_000_000_000

// entry is an entry of the file while it is read.
type entry struct {
	value

	key      *Key
	hash, id value   // the fields; without a node where the field is missing
	perModel []value // the names of the models in the quota
}

func (e *entry) read() {
	k := e.key
	e.Fields(map[string]func(value){
		"key_hash":            func(v value) { e.hash, k.hash = v, readHash(v) },
		"id":                  func(v value) { e.id, k.ID = v, v.Name() },
		"name":                func(v value) { k.Name = v.Name() },
		"tenant":              func(v value) { k.Tenant = v.Name() },
		"models":              func(v value) { k.models = set(readNames(v, "leave it out to allow all models")) },
		"scopes":              func(v value) { k.Scopes = readNames(v, "leave it out to allow all sites") },
		"redirect":            func(v value) { k.RedirectNever = readRedirect(v) },
		"max_occupancy_share": func(v value) { k.Share = readShare(v) },
		"expires":             func(v value) { k.expires = readExpiry(v) },
		"quota":               func(v value) { k.quota = e.readQuota(v) },
	}, "key_hash", "tenant")
	for _, name := range e.perModel {
		// The quota would have no effect: most likely the name is misspelled.
		if !k.Allowed(name.Value) {
			name.Add("is not in the models of this key")
		}
	}
}

func (e *entry) readQuota(v value) *quota {
	q := &quota{models: map[string]*limit{}}
	v.Fields(map[string]func(value){
		"requests_per_minute": func(v value) { q.all = &limit{perReplica: int(v.Number(maxPerMinute))} },
		"per_model": func(v value) {
			v.Mapping(func(name *yaml.Node, v value) {
				v.CheckName(name.Value)
				e.perModel = append(e.perModel, v.At(name))
				q.models[name.Value] = &limit{perReplica: readPerReplica(v)}
			})
		},
	})
	return q
}

func readPerReplica(v value) (n int) {
	const field = "requests_per_minute_per_replica"
	v.Fields(map[string]func(value){
		field: func(v value) { n = int(v.Number(maxPerMinute)) },
	}, field)
	return n
}

// defaultID returns the id of an entry without one: the first 8 digits of its key_hash,
// in lower case.
func defaultID(hash [sha256.Size]byte) string { return hex.EncodeToString(hash[:4]) }

// readHash reads the hash of a key, or reports a problem and returns zeros. It accepts
// scalars of all types, because YAML takes some hashes for numbers. An invalid value is not
// shown, because it may be the key itself.
func readHash(v value) [sha256.Size]byte {
	sum, err := hex.DecodeString(v.Value)
	if v.Kind != yaml.ScalarNode || err != nil || len(sum) != sha256.Size {
		v.Add("must be the SHA-256 hash of the key, in 64 hexadecimal digits")
		return [sha256.Size]byte{}
	}
	hash := [sha256.Size]byte(sum)
	switch hash {
	case sha256.Sum256(nil):
		v.Add("is the hash of an empty key")
	case [sha256.Size]byte{}:
		v.Add("must not be all zeros")
	default:
		return hash
	}
	return [sha256.Size]byte{}
}

func readRedirect(v value) (never bool) {
	if v.Kind != yaml.ScalarNode || v.Value != "allow" && v.Value != "never" {
		v.Bad("must be allow or never")
	}
	return v.Value == "never"
}

func readShare(v value) float64 {
	share := 0.0
	tag := v.ShortTag()
	if v.Kind == yaml.ScalarNode && (tag == "!!float" || tag == "!!int") && v.Decode(&share) == nil && share > 0 && share <= 1 {
		return share
	}
	v.Bad("must be a number above 0 and at most 1")
	return 0
}

// readExpiry returns the first moment at which the key is no longer valid.
func readExpiry(v value) time.Time {
	tag := v.ShortTag()
	if v.Kind == yaml.ScalarNode && (tag == "!!str" || tag == "!!timestamp") {
		if day, err := time.Parse(time.DateOnly, v.Value); err == nil {
			return day.AddDate(0, 0, 1)
		}
		if t, err := time.Parse(time.RFC3339, v.Value); err == nil && !t.IsZero() { // zero would mean never
			return t
		}
	}
	v.Bad("must be a date such as 2027-01-31, or a time such as 2027-01-31T18:00:00Z")
	return time.Time{}
}

// set returns the names as a set, nil for nil.
func set(names []string) map[string]struct{} {
	if names == nil {
		return nil
	}
	s := make(map[string]struct{}, len(names))
	for _, n := range names {
		s[n] = struct{}{}
	}
	return s
}
