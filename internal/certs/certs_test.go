// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/certs/certstest"
	"github.com/holdgate/holdgate/internal/grpctest"
	"github.com/holdgate/holdgate/internal/reload"
)

// soon is when a change of a file must have been seen.
const soon = 2 * reload.Interval

func files(cert, key, clients string) Files {
	return Files{Cert: File{"x-cert-file", cert}, Key: File{"x-key-file", key}, ClientCA: File{"x-ca-file", clients}}
}

// handshake says why a client is refused, nil when it is not.
func handshake(t *testing.T, server, client *tls.Config) error {
	t.Helper()
	lis := grpctest.Listen(nil)
	defer lis.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		far, err := lis.Accept()
		if err != nil {
			return
		}
		_, _ = tls.Server(far, server).Write([]byte("x"))
		_ = far.Close()
	}()
	near, err := lis.Dial()
	require.NoError(t, err)
	// With TLS 1.3 a client learns from the first byte that it was refused.
	_, err = tls.Client(near, client).Read(make([]byte, 1))
	_ = near.Close()
	<-done
	return err
}

// trusting is a client that trusts an authority, with a certificate of another
// one unless that is nil.
func trusting(t *testing.T, a, own *certstest.Authority, edits ...func(*x509.Certificate)) *tls.Config {
	t.Helper()
	text, err := os.ReadFile(a.File)
	require.NoError(t, err)
	pool, err := Authorities(text)
	require.NoError(t, err)
	c := &tls.Config{RootCAs: pool, ServerName: "localhost", MinVersion: tls.VersionTLS12}
	if own != nil {
		pair, err := tls.LoadX509KeyPair(own.Issue(edits...))
		require.NoError(t, err)
		c.Certificates = []tls.Certificate{pair}
	}
	return c
}

func TestAHandshakeNeedsWhatTheFilesSay(t *testing.T) {
	t.Parallel()
	ours, other := certstest.New(t), certstest.New(t)
	cases := map[string]struct {
		server  []func(*x509.Certificate)
		mutual  bool
		client  *tls.Config
		refused string
	}{
		"own authority":      {nil, false, trusting(t, ours, nil), ""},
		"wrong authority":    {nil, false, trusting(t, other, nil), "signed by unknown authority"},
		"expired":            {[]func(*x509.Certificate){certstest.Expired}, false, trusting(t, ours, nil), "certificate has expired"},
		"wrong name":         {[]func(*x509.Certificate){certstest.Named("elsewhere")}, false, trusting(t, ours, nil), "valid for elsewhere, not localhost"},
		"mutual":             {nil, true, trusting(t, ours, ours), ""},
		"mutual, none given": {nil, true, trusting(t, ours, nil), "certificate required"},
		"mutual, other's":    {nil, true, trusting(t, ours, other), "tls: "},
		"mutual, expired":    {nil, true, trusting(t, ours, ours, certstest.Expired), "expired certificate"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cert, key := ours.Issue(c.server...)
			clients := ""
			if c.mutual {
				clients = ours.File
			}
			s, err := Load(files(cert, key, clients), reload.Options{})
			require.NoError(t, err)
			err = handshake(t, s.Config(), c.client)
			if c.refused == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.refused)
		})
	}
}

func TestOldVersionsAreRefused(t *testing.T) {
	t.Parallel()
	a := certstest.New(t)
	cert, key := a.Issue()
	s, err := Load(files(cert, key, ""), reload.Options{})
	require.NoError(t, err)
	client := trusting(t, a, nil)
	client.MaxVersion = tls.VersionTLS12
	require.ErrorContains(t, handshake(t, s.Config(), client), "protocol version not supported")
}

func TestTheFirstFilesMustBeGood(t *testing.T) {
	t.Parallel()
	a := certstest.New(t)
	cert, key := a.Issue()
	_, otherKey := a.Issue()
	missing := filepath.Join(t.TempDir(), "none")
	for name, c := range map[string]struct {
		files Files
		want  string
	}{
		"no certificate":      {files(missing, key, ""), "reading --x-cert-file: "},
		"no key":              {files(cert, missing, ""), "reading --x-cert-file: " + cert + ": reading --x-key-file: "},
		"no authority":        {files(cert, key, missing), "reading --x-ca-file: "},
		"key for certificate": {files(key, key, ""), "reading --x-cert-file: "},
		"certificate for key": {files(cert, cert, ""), "reading it with --x-key-file: tls: "},
		"another's key":       {files(cert, otherKey, ""), "private key does not match public key"},
		"key for authority":   {files(cert, key, key), "has no certificate in PEM"},
	} {
		_, err := Load(c.files, reload.Options{})
		require.ErrorContains(t, err, c.want, name)
	}
}

// log collects lines from the watchers.
type log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// rig is a server in a bubble, whose files are being watched.
type rig struct {
	*Server
	*certstest.Authority
	t     *testing.T
	files Files
	log   log
}

func watched(t *testing.T, test func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, Authority: certstest.New(t)}
		cert, key := r.Issue()
		r.files = files(cert, key, r.File)
		var err error
		r.Server, err = Load(r.files, reload.Options{Log: zerolog.New(&r.log)})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			r.Watch(ctx)
			close(ended)
		}()
		test(r)
		cancel()
		<-ended
	})
}

func wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestFilesThatChangeTakeEffectWithoutARestart(t *testing.T) {
	t.Parallel()
	watched(t, func(r *rig) {
		require.NoError(r.t, handshake(r.t, r.Config(), trusting(r.t, r.Authority, r.Authority)))
		next := certstest.New(r.t)
		next.IssueTo(r.files.Cert.Path, r.files.Key.Path)
		text, err := os.ReadFile(next.File)
		require.NoError(r.t, err)
		require.NoError(r.t, os.WriteFile(r.files.ClientCA.Path, text, 0o600))
		wait(soon)
		require.NoError(r.t, handshake(r.t, r.Config(), trusting(r.t, next, next)))
		require.NotContains(r.t, r.log.String(), "is bad", "the pair was swapped at once")
		require.Error(r.t, handshake(r.t, r.Config(), trusting(r.t, next, r.Authority)), "its authority was taken out")
	})
}

// Whichever file comes first, the pair that is in force is never half of each.
func TestAPairMayComeOneFileAfterTheOther(t *testing.T) {
	t.Parallel()
	for name, keyFirst := range map[string]bool{"the certificate first": false, "the key first": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			watched(t, func(r *rig) {
				works := func() error { return handshake(r.t, r.Config(), trusting(r.t, r.Authority, r.Authority)) }
				old := r.pair.Current()
				nextCert, nextKey := r.Issue()
				order := [][2]string{{nextCert, r.files.Cert.Path}, {nextKey, r.files.Key.Path}}
				if keyFirst {
					slices.Reverse(order)
				}
				require.NoError(r.t, os.Rename(order[0][0], order[0][1]))
				wait(10 * soon)
				require.Same(r.t, old, r.pair.Current())
				require.Contains(r.t, r.log.String(), "private key does not match public key")
				require.NoError(r.t, works())
				require.NoError(r.t, os.Rename(order[1][0], order[1][1]))
				wait(soon)
				require.NotSame(r.t, old, r.pair.Current())
				require.NoError(r.t, works())
			})
		})
	}
}

func TestReloadReportsEveryBadFile(t *testing.T) {
	t.Parallel()
	a := certstest.New(t)
	cert, key := a.Issue()
	s, err := Load(files(cert, key, a.File), reload.Options{})
	require.NoError(t, err)
	require.NoError(t, s.Reload())
	require.NoError(t, os.Remove(key))
	require.NoError(t, os.WriteFile(a.File, nil, 0o600))
	err = s.Reload()
	require.ErrorContains(t, err, "--x-key-file")
	require.ErrorContains(t, err, "--x-ca-file")
}
