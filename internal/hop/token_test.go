// SPDX-License-Identifier: Apache-2.0

package hop

import (
	"crypto/sha256"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/holdgate/holdgate/sitemap"
)

const (
	oldSecret = "an old secret of thirty-two bytes"
	newSecret = "the new secret of thirty-two bytes"
	path      = "/v1/chat/completions?a=1"
)

var body = sha256.Sum256([]byte(`{"model": "m"}`))

func secrets(t testing.TB, lines ...string) *Secrets {
	t.Helper()
	s, err := parse(strings.Join(lines, "\n"), "site-us-1")
	require.NoError(t, err)
	return s
}

func claims() Claims {
	return Claims{Site: "site-fr-1", To: "site-us-1", KeyID: "acme-prod", Hops: 1, Method: "POST", PathAndQuery: path, Body: body}
}

func sign(t testing.TB, s *Secrets, c Claims) string {
	t.Helper()
	token, err := s.Sign(c)
	require.NoError(t, err)
	return token
}

// payload returns the payload of a token for this site, without its times.
func payload() wire {
	return wire{
		Audience: jwt.ClaimStrings{"site-us-1"},
		Hops:     1, Head: EncodeSum(HeadSum("POST", path)), Body: EncodeSum(body),
	}
}

func TestATokenSaysWhatWasSigned(t *testing.T) {
	t.Parallel()
	s := secrets(t, oldSecret)
	token := sign(t, s, claims())
	require.Less(t, len(token), 450, "it must fit beside a query")
	v, err := s.VerifyHead(token, "POST", path)
	require.NoError(t, err)
	require.Equal(t, "site-fr-1", v.Site)
	require.Equal(t, "acme-prod", v.KeyID)
	require.Equal(t, 1, v.Hops)
	require.NoError(t, v.VerifyBody(body))

	c := claims()
	c.KeyID, c.Hops = "", 2
	v, err = s.VerifyHead(sign(t, s, c), "POST", path)
	require.NoError(t, err)
	require.Empty(t, v.KeyID)
	require.Equal(t, 2, v.Hops)
}

// The sibling sees the Location's path, with the token in it.
func TestATokenPassesThroughALocation(t *testing.T) {
	t.Parallel()
	s := secrets(t, oldSecret)
	for _, original := range []string{"/v1/chat/completions", path, "/v1/x?", "/v1/x?a=%41'[]&b=%zz", "/v1/x?hg_hop=old&a"} {
		c := claims()
		c.PathAndQuery = original
		location := sitemap.Location(&sitemap.Site{URL: "https://us-1.example.com"}, original, sign(t, s, c))
		arrived := strings.TrimPrefix(location, "https://us-1.example.com")
		token, stripped := sitemap.Hops(arrived)
		for _, seen := range []string{arrived, stripped} {
			v, err := s.VerifyHead(token, "POST", seen)
			require.NoError(t, err, original)
			require.NoError(t, v.VerifyBody(body))
		}
	}
}

func TestATokenIsForOneRequest(t *testing.T) {
	t.Parallel()
	s := secrets(t, oldSecret)
	token := sign(t, s, claims())
	for _, c := range [][2]string{
		{"GET", path},
		{"post", path},
		{"POST", "/v1/chat/completions"},
		{"POST", "/v1/chat/completions?a=2"},
		{"POST", "/v1/chat/completions?a=1&b"},
		{"POST", "/v1/chat/completions?a%3D1"},
		{"POST", "/v1/messages?a=1"},
		{"POST", "/v1%2Fchat/completions?a=1"},
		{"POST", "/V1/chat/completions?a=1"},
		{"", ""},
	} {
		_, err := s.VerifyHead(token, c[0], c[1])
		require.ErrorIs(t, err, ErrMismatch, c)
		require.Equal(t, "mismatch", Class(err))
	}
	v, err := s.VerifyHead(token, "POST", path)
	require.NoError(t, err)
	err = v.VerifyBody(sha256.Sum256([]byte(`{"model": "n"}`)))
	require.ErrorIs(t, err, ErrMismatch)
	require.ErrorIs(t, v.VerifyBody([32]byte{}), ErrMismatch)
}

// Clients rewrite a URL without changing its meaning.
func TestClientsMayRewriteTheQuery(t *testing.T) {
	t.Parallel()
	s := secrets(t, oldSecret)
	c := claims()
	c.PathAndQuery = `/v1/x?a='b'|[c]&d=%7e%41&e=%2f&f=%zz&g="`
	token := sign(t, s, c)
	for _, seen := range []string{
		`/v1/x?a=%27b%27|[c]&d=%7e%41&e=%2f&f=%zz&g=%22`,
		`/v1/x?a='b'%7C%5Bc%5D&d=~A&e=%2F&f=%25zz&g="`,
		`/v1/x?hg_hop=x&a='b'%7c%5bc%5d&d=~%41&e=%2f&f=%zz&g="`,
		`/v%31/%78?a='b'|[c]&d=~A&e=%2f&f=%zz&g="`,
	} {
		_, err := s.VerifyHead(token, "POST", seen)
		require.NoError(t, err, seen)
	}
	for _, seen := range []string{
		`/v1/x?a='b'|[c]&d=%7e%41&e=/&f=%zz&g="`,
		`/v1/x?a='b'|[c]%26d=%7e%41&e=%2f&f=%zz&g="`,
		`/v1/x?a='b'|[c]&d%3D%7e%41&e=%2f&f=%zz&g="`,
	} {
		_, err := s.VerifyHead(token, "POST", seen)
		require.ErrorIs(t, err, ErrMismatch, seen)
	}
}

// The normal form is one: it is its own, and two of the same bytes with the
// same delimiters have the same.
func TestNormalFormIsFixed(t *testing.T) {
	t.Parallel()
	require.Equal(t, "/", string(appendNormal(nil, "/?")))
	require.Equal(t, "/??", string(appendNormal(nil, "/??")))
	rapid.Check(t, func(t *rapid.T) {
		in := rapid.StringMatching(`/[ -~]{0,8}(\?(%[0-9A-Fa-f]{2}|[ -~]){0,12})?`).Draw(t, "path")
		once := string(appendNormal(nil, in))
		if value, _ := sitemap.Hops(in); value == "" {
			require.Equal(t, once, string(appendNormal(nil, once)))
		}
	})
}

func TestTime(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		skew time.Duration // of the time of the check
		want error
	}{
		"at once":              {0, nil},
		"at the end of life":   {Life, nil},
		"in the leeway":        {Life + Leeway - time.Second, nil},
		"after the leeway":     {Life + Leeway + time.Second, ErrExpired},
		"a day later":          {24 * time.Hour, ErrExpired},
		"signer's clock ahead": {-Leeway, nil},
		"too far ahead":        {-Leeway - 2*time.Second, ErrExpired},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := secrets(t, oldSecret)
				now := time.Now()
				token := sign(t, s, claims())
				if c.skew < 0 {
					// The bubble's clock runs forward only: sign later instead.
					w := payload()
					w.IssuedAt, w.ExpiresAt = jwt.NewNumericDate(now.Add(-c.skew)), jwt.NewNumericDate(now.Add(Life-c.skew))
					var err error
					token, err = jwt.NewWithClaims(jwt.SigningMethodHS256, w).SignedString(s.signing)
					require.NoError(t, err)
				} else {
					time.Sleep(c.skew)
				}
				_, err := s.VerifyHead(token, "POST", path)
				if c.want == nil {
					require.NoError(t, err)
					return
				}
				require.ErrorIs(t, err, c.want)
				require.Equal(t, "expired", Class(err))
			})
		})
	}
}

// An expired token that no sibling signed is forged, not expired.
func TestTheMACIsCheckedFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		token := sign(t, secrets(t, oldSecret), claims())
		time.Sleep(time.Hour)
		_, err := secrets(t, newSecret).VerifyHead(token, "GET", "/")
		require.ErrorIs(t, err, ErrForged)
		require.NotErrorIs(t, err, ErrExpired)
	})
}

// Each step of a rotation, done at one site before the other.
func TestRotation(t *testing.T) {
	t.Parallel()
	before, during, after, end := secrets(t, oldSecret), secrets(t, oldSecret, newSecret), secrets(t, newSecret, oldSecret), secrets(t, newSecret)
	for name, pair := range map[string][2]*Secrets{
		"before and during": {before, during}, "during and after": {during, after}, "after and the end": {after, end},
	} {
		for _, way := range [][2]*Secrets{{pair[0], pair[1]}, {pair[1], pair[0]}} {
			_, err := way[1].VerifyHead(sign(t, way[0], claims()), "POST", path)
			require.NoError(t, err, name)
		}
	}
	_, err := end.VerifyHead(sign(t, before, claims()), "POST", path)
	require.ErrorIs(t, err, ErrForged)
	require.Equal(t, "forged", Class(err))
}

func TestATokenIsForOneSite(t *testing.T) {
	t.Parallel()
	s := secrets(t, oldSecret)
	for _, to := range []string{"", "site-us-2", "site-us-1 "} {
		c := claims()
		c.To = to
		_, err := s.VerifyHead(sign(t, s, c), "POST", path)
		require.ErrorIs(t, err, ErrMismatch, to)
	}
	nowhere, err := parse(oldSecret, "")
	require.NoError(t, err)
	_, err = nowhere.VerifyHead(sign(t, s, claims()), "POST", path)
	require.ErrorIs(t, err, ErrMismatch)
}

// One who has a secret may say anything but when it is.
func TestATokenLivesNoLongerThanItMay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := secrets(t, oldSecret)
		w := payload()
		w.ExpiresAt = jwt.NewNumericDate(time.Now().Add(24 * time.Hour))
		verify := func() error {
			token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, w).SignedString(s.signing)
			require.NoError(t, err)
			_, err = s.VerifyHead(token, "POST", path)
			return err
		}
		require.ErrorIs(t, verify(), ErrForged, "it does not say when it was made")
		w.IssuedAt = jwt.NewNumericDate(time.Now())
		time.Sleep(Life + Leeway)
		require.NoError(t, verify())
		time.Sleep(time.Second)
		require.ErrorIs(t, verify(), ErrExpired)
	})
}

func TestForeignTokens(t *testing.T) {
	t.Parallel()
	s := secrets(t, oldSecret)
	w := payload()
	w.IssuedAt, w.ExpiresAt = jwt.NewNumericDate(time.Now()), jwt.NewNumericDate(time.Now().Add(Life))
	with := func(method jwt.SigningMethod, key any, w jwt.Claims) string {
		token, err := jwt.NewWithClaims(method, w).SignedString(key)
		require.NoError(t, err)
		return token
	}
	good := with(jwt.SigningMethodHS256, s.signing, w)
	_, err := s.VerifyHead(good, "POST", path)
	require.NoError(t, err)

	noHops, noEnd := w, w
	noHops.Hops, noEnd.ExpiresAt = 0, nil
	parts := strings.Split(good, ".")
	for name, token := range map[string]string{
		"empty":            "",
		"dots":             "..",
		"a number":         "2",
		"no signature":     with(jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, w),
		"another HMAC":     with(jwt.SigningMethodHS512, s.signing, w),
		"another secret":   with(jwt.SigningMethodHS256, []byte(newSecret), w),
		"empty secret":     with(jwt.SigningMethodHS256, []byte{}, w),
		"no hops":          with(jwt.SigningMethodHS256, s.signing, noHops),
		"no end":           with(jwt.SigningMethodHS256, s.signing, noEnd),
		"signature cut":    parts[0] + "." + parts[1] + ".",
		"one part more":    good + ".x",
		"padded":           good + "=",
		"line break":       parts[0] + ".\n" + parts[1] + "." + parts[2],
		"line break later": good + "\n",
		"space":            " " + good,
		"long":             strings.Repeat("a", 1<<20),
		"claims null":      with(jwt.SigningMethodHS256, s.signing, nil),
		"header null":      base64.RawURLEncoding.EncodeToString([]byte("null")) + "." + parts[1] + "." + parts[2],
	} {
		_, err := s.VerifyHead(token, "POST", path)
		require.ErrorIs(t, err, ErrForged, name)
		require.Equal(t, "forged", Class(err), name)
	}
}

func TestSignRefusesWhatNobodyWouldAccept(t *testing.T) {
	t.Parallel()
	s := secrets(t, oldSecret)
	c := claims()
	c.Hops = 0
	_, err := s.Sign(c)
	require.ErrorContains(t, err, "not number 0")
	c = claims()
	c.KeyID = strings.Repeat("k", maxToken)
	_, err = s.Sign(c)
	require.ErrorContains(t, err, "bytes are more than")
}

func TestLoad(t *testing.T) {
	t.Parallel()
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "secrets")
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	s, err := Load(file("# rotation of November\r\n\r\n  "+newSecret+"\r\n"+oldSecret), "site-us-1")
	require.NoError(t, err)
	require.Equal(t, newSecret, string(s.signing))
	require.Len(t, s.all.Keys, 2)
	_, err = secrets(t, newSecret).VerifyHead(sign(t, s, claims()), "POST", path)
	require.NoError(t, err)

	for text, want := range map[string]string{
		"":                             "has no secret",
		"# only this\n\n":              "has no secret",
		newSecret + "\n\nhunter2\n":    "has a secret of 7 bytes on line 3",
		strings.Repeat("x", maxFile+1): "is too large",
	} {
		_, err := Load(file(text), "site-us-1")
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "hunter2")
	}
	_, err = Load(filepath.Join(t.TempDir(), "none"), "site-us-1")
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestClassOfAnotherErrorIsEmpty(t *testing.T) {
	t.Parallel()
	require.Empty(t, Class(os.ErrNotExist))
	require.Empty(t, Class(nil))
}

// FuzzToken: no text panics, and of the texts that differ from a good token by
// an edit none is accepted.
func FuzzToken(f *testing.F) {
	s := secrets(f, oldSecret, newSecret)
	f.Add("", uint16(0), byte('x'), uint8(0))
	f.Add("e30.e30.", uint16(400), byte('\n'), uint8(1))
	f.Add("eyJhbGciOiJub25lIn0.e30.", uint16(30), byte('.'), uint8(2))
	f.Fuzz(func(t *testing.T, text string, at uint16, c byte, edit uint8) {
		good := sign(t, s, claims())
		if text != good {
			_, err := s.VerifyHead(text, "POST", path)
			require.ErrorIs(t, err, ErrForged)
		}
		i := int(at) % len(good)
		changed := good[:i] + string([]byte{c}) + good[i:] // one more
		switch edit % 3 {
		case 1:
			changed = good[:i] + string([]byte{c}) + good[i+1:]
		case 2:
			changed = good[:i] + good[i+1:]
		}
		_, err := s.VerifyHead(changed, "POST", path)
		if changed == good {
			require.NoError(t, err)
			return
		}
		require.ErrorIs(t, err, ErrForged)
	})
}

// Every single change of every byte, once.
func TestNoByteOfATokenIsFree(t *testing.T) {
	t.Parallel()
	s := secrets(t, oldSecret)
	good := sign(t, s, claims())
	for i := range len(good) {
		for bit := range 8 {
			changed := []byte(good)
			changed[i] ^= 1 << bit
			_, err := s.VerifyHead(string(changed), "POST", path)
			require.ErrorIs(t, err, ErrForged)
		}
	}
}

func BenchmarkSign(b *testing.B) {
	s, c := secrets(b, oldSecret), claims()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Sign(c); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkVerify(b *testing.B) {
	s := secrets(b, newSecret, oldSecret)
	token := sign(b, secrets(b, oldSecret), claims())
	b.ReportAllocs()
	for b.Loop() {
		v, err := s.VerifyHead(token, "POST", path)
		if err != nil || v.VerifyBody(body) != nil {
			b.Fatal(err)
		}
	}
}

// A named pipe as the file of secrets must not hang the start.
func TestAPipeIsNoFileOfSecrets(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "secrets")
	require.NoError(t, unix.Mkfifo(path, 0o600))
	_, err := Load(path, "site-us-1")
	require.ErrorContains(t, err, "is not a regular file")
}
