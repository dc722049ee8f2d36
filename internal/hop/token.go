// SPDX-License-Identifier: Apache-2.0

package hop

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

const (
	// Life is how long a token is valid.
	Life = 60 * time.Second
	// Leeway is by how much the clocks of two sites may differ.
	Leeway = 30 * time.Second

	// maxToken limits the bytes that are decoded before the MAC is checked.
	maxToken = 4096
)

// The classes of errors of this package.
var (
	// ErrForged: the token is not from these sites, or was changed.
	ErrForged = errors.New("the hop token is not signed by a site that this one trusts")
	// ErrExpired: the token has expired, or is not valid yet.
	ErrExpired = errors.New("the hop token is not valid at this time")
	// ErrMismatch: the token is for another request.
	ErrMismatch = errors.New("the hop token was made for another request")
)

// Class returns the metric label for the class of an error, empty for an error of another
// package.
func Class(err error) string {
	switch {
	case errors.Is(err, ErrForged):
		return "forged"
	case errors.Is(err, ErrExpired):
		return "expired"
	case errors.Is(err, ErrMismatch):
		return "mismatch"
	}
	return ""
}

// Claims are the contents of a token and the request that it is for.
type Claims struct {
	// Site is the site that redirects the request, and To the site that gets it.
	Site, To string
	// KeyID is the id of the key that Site authenticated; empty for a caller without one.
	KeyID string
	// Hops is the number of redirects, this one included.
	Hops int

	Method string
	// PathAndQuery is that of the request as received. A parameter hg_hop is ignored.
	PathAndQuery string
	// Body is the SHA-256 of the body as received, before it is decoded.
	Body [sha256.Size]byte
}

// wire is the payload of a token.
type wire struct {
	jwt.RegisteredClaims

	KeyID string `json:"key,omitempty"`
	Hops  int    `json:"hops"`
	Head  string `json:"head"`
	Body  string `json:"body"`
}

// Sign returns a token.
func (s *Secrets) Sign(c Claims) (string, error) {
	if c.Hops < 1 {
		return "", fmt.Errorf("signing a hop token: a redirect is at least the first, not number %d", c.Hops)
	}
	now := time.Now()
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, wire{
		Issuer:    c.Site,
		Audience:  jwt.ClaimStrings{c.To},
		IssuedAt:  jwt.NewNumericDate(now),
		ExpiresAt: jwt.NewNumericDate(now.Add(Life)),
		KeyID:     c.KeyID,
		Hops:      c.Hops,
		Head:      EncodeSum(HeadSum(c.Method, c.PathAndQuery)),
		Body:      EncodeSum(c.Body),
	}).SignedString(s.signing)
	if err != nil {
		return "", fmt.Errorf("signing a hop token: %w", err)
	}
	if len(token) > maxToken {
		return "", fmt.Errorf("signing a hop token: its %d bytes are more than the %d that a site reads", len(token), maxToken)
	}
	return token, nil
}

// Verified is a token that VerifyHead accepted. It authenticates the request only if
// VerifyBody succeeds too.
type Verified struct {
	Site  string
	KeyID string
	Hops  int

	body string
}

// VerifyHead checks the MAC and the time of a token, and that it is for this site, method
// and path. The parameter hg_hop of the path is ignored.
func (s *Secrets) VerifyHead(token, method, pathAndQuery string) (*Verified, error) {
	if len(token) > maxToken || strings.ContainsFunc(token, notInToken) {
		return nil, fmt.Errorf("%w: it is no token at all", ErrForged)
	}
	var w wire
	_, err := s.parser.ParseWithClaims(token, &w, func(*jwt.Token) (any, error) { return s.all, nil })
	switch {
	case err == nil:
	case AtWrongTime(err):
		return nil, fmt.Errorf("%w: %w", ErrExpired, err)
	default:
		return nil, fmt.Errorf("%w: %w", ErrForged, err)
	}
	if w.IssuedAt == nil || w.Hops < 1 {
		return nil, fmt.Errorf("%w: it counts no redirect, or does not say when it was made", ErrForged)
	}
	// A token cannot set an expiry later than Life.
	if time.Since(w.IssuedAt.Time) > Life+Leeway {
		return nil, fmt.Errorf("%w: it was made too long ago", ErrExpired)
	}
	if !slices.Contains(w.Audience, s.site) {
		return nil, fmt.Errorf("%w: it was made for site %q, and this is %q", ErrMismatch, strings.Join(w.Audience, ","), s.site)
	}
	if !IsSum(w.Head, HeadSum(method, pathAndQuery)) {
		return nil, fmt.Errorf("%w: method, path or query differ", ErrMismatch)
	}
	return &Verified{Site: w.Issuer, KeyID: w.KeyID, Hops: w.Hops, body: w.Body}, nil
}

// VerifyBody checks that the token is for a body with this SHA-256. The hash must be that of
// the body as received.
func (v *Verified) VerifyBody(sum [sha256.Size]byte) error {
	if !IsSum(v.body, sum) {
		return fmt.Errorf("%w: the body differs", ErrMismatch)
	}
	return nil
}

// notInToken reports whether no token contains c. Without this check line breaks, which the
// base64 decoder ignores, would give one token many forms.
func notInToken(c rune) bool {
	letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
	digit := c >= '0' && c <= '9'
	return !letter && !digit && c != '-' && c != '_' && c != '.'
}

// EncodeSum returns a SHA-256 as tokens have it.
func EncodeSum(sum [sha256.Size]byte) string {
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// IsSum reports whether a text of a token is that of a SHA-256.
func IsSum(text string, sum [sha256.Size]byte) bool {
	return subtle.ConstantTimeCompare([]byte(text), []byte(EncodeSum(sum))) == 1
}

// NewParser returns a parser of tokens with a MAC. leeway is by how much the clocks of those who
// sign and of those who verify may differ.
func NewParser(leeway time.Duration) *jwt.Parser {
	return jwt.NewParser(
		jwt.WithValidMethods([]string{jwt.SigningMethodHS256.Alg()}),
		jwt.WithStrictDecoding(),
		jwt.WithExpirationRequired(),
		jwt.WithIssuedAt(),
		jwt.WithLeeway(leeway),
	)
}

// AtWrongTime reports whether a parser's error is that a token has expired or is not valid yet.
func AtWrongTime(err error) bool {
	return errors.Is(err, jwt.ErrTokenExpired) || errors.Is(err, jwt.ErrTokenUsedBeforeIssued) || errors.Is(err, jwt.ErrTokenNotValidYet)
}
