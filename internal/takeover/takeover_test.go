// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/extproc/wire"
	"github.com/holdgate/holdgate/internal/polltest"
)

// listen returns a Listener at a new address.
func listen(t *testing.T, network string) *Listener {
	t.Helper()
	address := "127.0.0.1:0"
	if network == "unix" {
		address = filepath.Join(t.TempDir(), "a.sock")
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), network, address)
	require.NoError(t, err)
	listener, err := NewListener(l)
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

// pair returns both ends of a connection.
func pair(t *testing.T) (before, after *Conn) {
	t.Helper()
	l := listen(t, "unix")
	accepted := make(chan *Conn, 1)
	go func() {
		c, err := Accept(l)
		assertNoError(t, err)
		accepted <- c
	}()
	after, err := Dial(t.Context(), l.Addr().String())
	require.NoError(t, err)
	before = <-accepted
	t.Cleanup(func() { _ = before.Close(); _ = after.Close() })
	return before, after
}

func assertNoError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// answerAll answers each connection with a text, until the listener is closed.
func answerAll(l net.Listener, text string) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			_, _ = conn.Read(make([]byte, 1))
			_, _ = io.WriteString(conn, text)
			_ = conn.Close()
		}()
	}
}

// ask returns what the process at an address answers.
func ask(t *testing.T, addr net.Addr) (string, error) {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), addr.Network(), addr.String())
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write([]byte{1}); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	return string(answer), err
}

// Connections that are made while a socket changes hands are all answered, by one of the two.
func TestNoConnectionIsRefusedWhileASocketChangesHands(t *testing.T) {
	t.Parallel()
	for _, network := range []string{"unix", "tcp"} {
		t.Run(network, func(t *testing.T) {
			t.Parallel()
			a, b := pair(t)
			before := listen(t, network)
			go answerAll(before, "before")
			var by sync.Map
			var clients sync.WaitGroup
			var failures atomic.Int64
			stop := make(chan struct{})
			for range 8 {
				clients.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						answer, err := ask(t, before.Addr())
						if err != nil || answer == "" {
							failures.Add(1)
							t.Errorf("%q %v", answer, err)
							return
						}
						n, _ := by.LoadOrStore(answer, new(atomic.Int64))
						n.(*atomic.Int64).Add(1)
					}
				})
			}
			count := func(who string) int64 {
				n, ok := by.Load(who)
				if !ok {
					return 0
				}
				return n.(*atomic.Int64).Load()
			}
			polltest.Within(t, 10*time.Second, "the process before answers", func() bool { return count("before") > 100 })
			require.NoError(t, a.SendSockets([]*Listener{before}))
			adopted, err := b.ReceiveSockets(time.Second)
			require.NoError(t, err)
			require.Len(t, adopted, 1)
			require.NoError(t, before.Pause(t.Context()))
			last := count("before")
			go answerAll(adopted[0], "after")
			polltest.Within(t, 10*time.Second, "the process after answers", func() bool { return count("after") > 100 })
			require.LessOrEqual(t, count("before")-last, int64(8), "only answers that were under way")
			before.Leave()
			adopted[0].Own()
			require.NoError(t, before.Close())
			n := count("after")
			polltest.Within(t, 10*time.Second, "the process after goes on", func() bool { return count("after") > n+100 })
			close(stop)
			clients.Wait()
			require.Zero(t, failures.Load())
			require.NoError(t, adopted[0].Close())
			_, err = ask(t, before.Addr())
			require.Error(t, err)
			if network == "unix" {
				require.NoFileExists(t, before.Addr().String())
			}
		})
	}
}

func TestAPausedListenerCanGoOn(t *testing.T) {
	t.Parallel()
	l := listen(t, "unix")
	go answerAll(l, "a")
	require.NoError(t, l.Pause(t.Context()))
	answered := make(chan string, 1)
	go func() {
		answer, _ := ask(t, l.Addr())
		answered <- answer
	}()
	select {
	case <-answered:
		require.Fail(t, "it accepts while it is paused")
	case <-time.After(50 * time.Millisecond):
	}
	l.Resume()
	require.Equal(t, "a", <-answered)
	require.NoError(t, l.Pause(t.Context()))
	require.NoError(t, l.Close())
	_, err := l.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
}

// A pause waits for the server to know what was accepted: it would close it otherwise.
func TestAPauseWaitsForConnectionsThatWereAccepted(t *testing.T) {
	t.Parallel()
	l := listen(t, "unix")
	client, err := net.Dial("unix", l.Addr().String())
	require.NoError(t, err)
	defer func() { _ = client.Close() }()
	conn, err := l.Accept()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, l.Pause(ctx), context.DeadlineExceeded)
	_, _ = client.Write([]byte{1})
	_, _ = conn.Read(make([]byte, 1))
	require.NoError(t, l.Pause(t.Context()))
	require.NoError(t, conn.Close())
}

func TestMessagesArriveAsTheyWere(t *testing.T) {
	t.Parallel()
	before, after := pair(t)
	all := []*Message{
		{Offer: &Offer{PID: 7, Sockets: []Socket{{"extproc-listen", "unix:///a"}}}},
		{Ready: &Ready{PID: 1}},
		{Agents: &Agents{PID: 1, IDs: []string{"a", "b"}}},
		{Commit: &Commit{PID: 1}},
		{Left: &Left{PID: 1, Map: []byte("{}")}},
		{Serving: &Serving{PID: 1}},
		{Needs: &Needs{At: time.Unix(5, 0).UTC(), Models: map[string]Need{"m": {Demand: 3, Wanted: true}}, Routers: map[string]string{"r": "/s"}}},
		{Entries: &Entries{List: []wire.LogEntry{
			{RequestID: "r", StreamID: "s", Status: 200, Duration: time.Second, Source: netip.MustParseAddr("::1"), Native: true},
			{Upstream: netip.MustParseAddrPort("127.0.0.1:80")},
		}}},
		{Gone: &Gone{Envoy: "pid 9", At: time.Unix(9, 0).UTC()}},
		{Claim: &Claim{RequestID: "r"}},
	}
	go func() {
		for _, m := range all {
			assertNoError(t, before.Send(m))
		}
	}()
	for _, m := range all {
		got, err := after.Receive(time.Second)
		require.NoError(t, err)
		require.Equal(t, m, got)
	}
	_, err := after.Receive(10 * time.Millisecond)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, before.Close())
	_, err = after.Receive(0)
	require.ErrorIs(t, err, io.EOF)
}

func TestNobodyOffersATakeover(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.sock")
	_, err := Dial(t.Context(), path)
	require.ErrorIs(t, err, ErrNobody)
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	_, err = Dial(t.Context(), path)
	require.ErrorIs(t, err, ErrNobody, "a socket that a killed process left")
	_, err = Dial(t.Context(), filepath.Join(path, "below a file"))
	require.Error(t, err)
}

// short fails a few times for want of a file descriptor.
type short struct {
	net.Listener
	fails int
}

func (s *short) Accept() (net.Conn, error) {
	if s.fails > 0 {
		s.fails--
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	return s.Listener.Accept()
}

// A process without a free file descriptor can be taken over from later.
func TestAcceptOutlivesAWantOfDescriptors(t *testing.T) {
	t.Parallel()
	l := &short{Listener: listen(t, "unix"), fails: 2}
	done := make(chan error, 1)
	go func() {
		c, err := Accept(l)
		if err == nil {
			err = c.Close()
		}
		done <- err
	}()
	c, err := Dial(t.Context(), l.Addr().String())
	require.NoError(t, err)
	require.NoError(t, <-done)
	require.NoError(t, c.Close())

	require.NoError(t, l.Close())
	_, err = Accept(l)
	require.ErrorIs(t, err, net.ErrClosed)
}
