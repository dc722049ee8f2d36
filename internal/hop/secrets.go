// SPDX-License-Identifier: Apache-2.0

package hop

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"strings"

	"github.com/golang-jwt/jwt/v5"

	"github.com/holdgate/holdgate/internal/reload"
)

const (
	// minSecret is the size of the MAC. A shorter secret would weaken it.
	minSecret = 32
	maxFile   = 64 << 10
)

// Secrets signs tokens, and verifies tokens for one site.
type Secrets struct {
	site    string
	signing []byte
	all     jwt.VerificationKeySet
	parser  *jwt.Parser
}

// Load reads a file with one secret on each line. site is the id of this site. The first
// secret signs, and all of them verify. To change the secret, add the new one as the second
// at every site, then make it the first, then remove the old one. Empty lines and lines
// that start with # are ignored.
func Load(path, site string) (*Secrets, error) {
	text, err := reload.Read(path, maxFile)
	if err != nil {
		return nil, fmt.Errorf("reading the hop secrets: %w", err)
	}
	s, err := parse(string(text), site)
	if err != nil {
		return nil, fmt.Errorf("reading the hop secrets: %s %w", path, err)
	}
	return s, nil
}

// Derive returns a key for another purpose from each secret, the first from the one that signs.
// A MAC that was made with such a key says nothing about the secret.
func (s *Secrets) Derive(purpose string) [][]byte {
	var keys [][]byte
	for _, secret := range s.all.Keys {
		mac := hmac.New(sha256.New, secret.([]byte)) //nolint:forcetypeassert // parse appended it
		mac.Write([]byte(purpose))
		keys = append(keys, mac.Sum(nil))
	}
	return keys
}

// parse reads the text of a file of secrets. Its errors do not contain a secret.
func parse(text, site string) (*Secrets, error) {
	s := &Secrets{site: site, parser: NewParser(Leeway)}
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if len(line) < minSecret {
			return nil, fmt.Errorf("has a secret of %d bytes on line %d: it must be at least %d long", len(line), number, minSecret)
		}
		s.all.Keys = append(s.all.Keys, []byte(line))
	}
	if len(s.all.Keys) == 0 {
		return nil, fmt.Errorf("has no secret: put one of at least %d bytes on a line", minSecret)
	}
	s.signing = s.all.Keys[0].([]byte) //nolint:forcetypeassert // appended above
	return s, nil
}
