// SPDX-License-Identifier: Apache-2.0

package access

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/big"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	keyPrefix = "hg-"
	keyBytes  = 32
	// keyDigits is how many digits in base 62 keyBytes need.
	keyDigits = 43
)

// NewKey returns a key of 32 random bytes. After its prefix it has only letters and digits,
// so that a double click selects all of them.
func NewKey() string {
	var b [keyBytes]byte
	rand.Read(b[:]) // never fails
	digits := new(big.Int).SetBytes(b[:]).Text(62)
	return keyPrefix + strings.Repeat("0", keyDigits-len(digits)) + digits
}

// Entry is the entry of a new key in a keys file. Empty fields are left out.
type Entry struct {
	KeyHash string   `yaml:"key_hash"` // set by YAML
	ID      string   `yaml:"id,omitempty"`
	Tenant  string   `yaml:"tenant"`
	Models  []string `yaml:"models,omitempty,flow"`
}

// YAML returns the entry for a key as an item of the list of keys in a keys file. Its error
// is Problems if a field is not valid.
func (e Entry) YAML(key string) (string, error) {
	sum := sha256.Sum256([]byte(key))
	e.KeyHash = hex.EncodeToString(sum[:])
	text, err := yaml.Marshal([]Entry{e})
	if err != nil {
		return "", fmt.Errorf("writing the entry: %w", err)
	}
	if _, err := Parse([]byte("keys:\n" + string(text))); err != nil {
		return "", err
	}
	return string(text), nil
}
