// SPDX-License-Identifier: Apache-2.0

package ticket

import (
	"crypto/sha256"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/hop"
)

const path = "/v1/chat/completions?a=b"

var body = sha256.Sum256([]byte("body"))

func claims() *Claims {
	return &Claims{RequestID: "id", Model: "m", AgentID: "a", Engine: "vllm", Method: "POST", PathAndQuery: path, Body: body, Size: 4}
}

func sign(t *testing.T, o *Office) string {
	t.Helper()
	text, err := o.Sign(claims())
	require.NoError(t, err)
	return text
}

func secrets(t *testing.T, lines ...string) *hop.Secrets {
	t.Helper()
	file := filepath.Join(t.TempDir(), "secrets")
	require.NoError(t, os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600))
	s, err := hop.Load(file, "here")
	require.NoError(t, err)
	return s
}

var (
	old  = strings.Repeat("o", 32)
	next = strings.Repeat("n", 32)
)

func TestATicketIsAcceptedOnce(t *testing.T) {
	t.Parallel()
	o := New(nil)
	text := sign(t, o)
	a, err := o.Accept(text, "POST", path)
	require.NoError(t, err)
	require.Equal(t, [4]string{"id", "m", "a", "vllm"}, [4]string{a.RequestID, a.Model, a.AgentID, a.Engine})
	require.Equal(t, int64(4), a.Size)
	require.NoError(t, a.CheckBody(body))
	require.ErrorIs(t, a.CheckBody(sha256.Sum256([]byte("other"))), ErrMismatch)
	_, err = o.Accept(text, "POST", path)
	require.ErrorIs(t, err, ErrUsed)
	_, err = o.Accept(sign(t, o), "POST", path)
	require.NoError(t, err, "another ticket of the same request")
}

func TestATicketThatAnotherRouterAccepted(t *testing.T) {
	t.Parallel()
	o := New(nil)
	var asked []string
	used := false
	o.Share(func(id string) bool {
		asked = append(asked, id)
		return used
	})
	text := sign(t, o)
	_, err := o.Accept(text, "POST", path)
	require.NoError(t, err)
	_, err = o.Accept(text, "POST", path)
	require.ErrorIs(t, err, ErrUsed, "here")
	require.Len(t, asked, 1)
	used = true
	_, err = o.Accept(sign(t, o), "POST", path)
	require.ErrorIs(t, err, ErrUsed, "elsewhere")
	require.Len(t, asked, 2)
	require.NotEqual(t, asked[0], asked[1])
	_, err = o.Accept("forged", "POST", path)
	require.ErrorIs(t, err, ErrForged)
	require.Len(t, asked, 2, "nobody is asked about what no router has signed")
}

func TestOfTwoRequestsAtOnceOneIsAccepted(t *testing.T) {
	t.Parallel()
	o := New(nil)
	text := sign(t, o)
	var accepted atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if _, err := o.Accept(text, "POST", path); err == nil {
				accepted.Add(1)
			}
		})
	}
	all.Wait()
	require.Equal(t, int32(1), accepted.Load())
}

func TestATicketIsForItsRequestAndRouterOnly(t *testing.T) {
	t.Parallel()
	o := New(nil)
	text := sign(t, o)
	hopToken, err := secrets(t, old).Sign(hop.Claims{Site: "here", To: "here", Hops: 1, Method: "POST", PathAndQuery: path, Body: body})
	require.NoError(t, err)
	changed := []byte(text)
	changed[len(changed)/2] ^= 1
	for name, c := range map[string]struct {
		office             *Office
		text, method, path string
		want               error
	}{
		"no ticket":           {o, "x", "POST", path, ErrForged},
		"a long one":          {o, strings.Repeat("x", maxTicket+1), "POST", path, ErrForged},
		"a changed one":       {o, string(changed), "POST", path, ErrForged},
		"of another router":   {New(nil), text, "POST", path, ErrForged},
		"a hop token":         {New(secrets(t, old)), hopToken, "POST", path, ErrForged},
		"another method":      {o, text, "PUT", path, ErrMismatch},
		"another path":        {o, text, "POST", "/v1/completions?a=b", ErrMismatch},
		"another query":       {o, text, "POST", path + "c", ErrMismatch},
		"unsigned":            {o, "eyJhbGciOiJub25lIn0." + strings.Split(text, ".")[1] + ".", "POST", path, ErrForged},
		"two headers' values": {o, text + text, "POST", path, ErrForged},
	} {
		_, err := c.office.Accept(c.text, c.method, c.path)
		require.ErrorIs(t, err, c.want, name)
		require.NotEmpty(t, Class(err), name)
	}
	_, err = o.Accept(text, "POST", path)
	require.NoError(t, err, "none of these has used the ticket")
	long := claims()
	long.Model = strings.Repeat("m", maxTicket)
	_, err = o.Sign(long)
	require.Error(t, err)
	require.Empty(t, Class(err))
}

func TestRoutersThatShareSecretsAcceptEachOthersTickets(t *testing.T) {
	t.Parallel()
	first, second := New(secrets(t, old, next)), New(secrets(t, next, old))
	for _, text := range []string{sign(t, first), sign(t, second)} {
		for _, o := range []*Office{first, second} {
			_, err := o.Accept(text, "POST", path)
			require.NoError(t, err)
			_, err = o.Accept(text, "POST", path)
			require.ErrorIs(t, err, ErrUsed)
		}
	}
}

func TestATicketExpires(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		secrets *hop.Secrets
		leeway  time.Duration
	}{
		"a router alone":       {nil, 0},
		"routers with secrets": {secrets(t, old), Leeway},
	} {
		synctest.Test(t, func(t *testing.T) {
			o := New(c.secrets)
			early, late := sign(t, o), sign(t, o)
			time.Sleep(Life - time.Second)
			_, err := o.Accept(early, "POST", path)
			require.NoError(t, err, name)
			time.Sleep(c.leeway + 2*time.Second)
			_, err = o.Accept(late, "POST", path)
			require.ErrorIs(t, err, ErrExpired, name)
		})
	}
}

func TestUsedTicketsAreForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := New(nil)
		for range 100 {
			_, err := o.Accept(sign(t, o), "POST", path)
			require.NoError(t, err)
			time.Sleep(10 * time.Second)
		}
		require.Len(t, o.used, 8, "those of the last 70 s")
		require.Len(t, o.order, 8)
	})
}
