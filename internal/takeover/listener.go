// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// socket is a listener of package net.
type socket interface {
	net.Listener
	syscall.Conn
	SetDeadline(t time.Time) error
}

// Listener is a listener whose socket another process may take over.
type Listener struct {
	socket socket

	accepting sync.Mutex // held during an Accept of socket
	pause     atomic.Pointer[chan struct{}]
	closed    chan struct{}
	close     func() error
	unknown   atomic.Int64 // accepted connections that their server does not know yet
	tap       func() Tap   // nil: connections are not read along
}

// Tap reads along with the server on one connection.
type Tap interface {
	// Read is called with what the server reads, by the goroutine that reads.
	Read(p []byte)
	// Drains reports whether the connection must be read until the client closes it, although
	// the server closes it.
	Drains() bool
}

// drainTime is how long a client may take to close a connection that is drained.
const drainTime = time.Second

// ReadAlong has a Tap read along on each connection that is accepted from here on.
func (l *Listener) ReadAlong(newTap func() Tap) { l.tap = newTap }

// NewListener returns a Listener for a listener of package net.
func NewListener(l net.Listener) (*Listener, error) {
	s, ok := l.(socket)
	if !ok {
		return nil, fmt.Errorf("a %T cannot be handed over", l)
	}
	n := &Listener{socket: s, closed: make(chan struct{})}
	n.close = sync.OnceValue(func() error {
		close(n.closed)
		return s.Close()
	})
	return n, nil
}

// adopt returns a Listener for the descriptor of a socket that listens, which it takes over.
func adopt(fd int) (*Listener, error) {
	file := os.NewFile(uintptr(fd), "socket")
	defer func() { _ = file.Close() }()
	l, err := net.FileListener(file)
	if err != nil {
		return nil, fmt.Errorf("adopting a socket: %w", err)
	}
	n, err := NewListener(l)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return n, nil
}

// removeAtEnd sets whether Close removes the path of a unix socket.
func (l *Listener) removeAtEnd(yes bool) {
	if u, ok := l.socket.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(yes)
	}
}

// fd returns the socket's descriptor, which is valid until Close.
func (l *Listener) fd() (fd int, err error) {
	raw, err := l.socket.SyscallConn()
	if err == nil {
		err = raw.Control(func(n uintptr) { fd = int(n) })
	}
	if err != nil {
		return 0, fmt.Errorf("finding a socket's descriptor: %w", err)
	}
	return fd, nil
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return l.socket.Addr() }

// Close implements net.Listener. If another process has taken the socket over, it goes on
// listening there.
func (l *Listener) Close() error { return l.close() }

// Accept implements net.Listener. While the listener is paused, it waits.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.accept()
		switch {
		case err == nil && conn != nil:
			return conn, nil
		case err != nil && !errors.Is(err, os.ErrDeadlineExceeded):
			return nil, err //nolint:wrapcheck // a server expects the error of package net
		}
		if paused := l.pause.Load(); paused != nil {
			select {
			case <-*paused:
			case <-l.closed:
				return nil, net.ErrClosed
			}
		}
	}
}

// accept accepts one connection, and returns nil while the listener is paused.
func (l *Listener) accept() (net.Conn, error) {
	l.accepting.Lock()
	defer l.accepting.Unlock()
	if l.pause.Load() != nil {
		return nil, nil
	}
	conn, err := l.socket.Accept()
	if err != nil {
		return nil, err //nolint:wrapcheck // a server expects the error of package net
	}
	l.unknown.Add(1)
	c := &tracked{Conn: conn, known: sync.OnceFunc(func() { l.unknown.Add(-1) }), close: sync.OnceValue(conn.Close)}
	if l.tap != nil {
		c.tap = l.tap()
	}
	return c, nil
}

// Pause stops accepting connections: they stay in the queue of the socket, for the other
// process. It returns when the server knows every connection that was accepted, which it does
// once it reads from it, or when ctx ends.
func (l *Listener) Pause(ctx context.Context) error {
	resumed := make(chan struct{})
	l.pause.Store(&resumed)
	if err := l.socket.SetDeadline(time.Unix(1, 0)); err != nil { // ends an Accept
		return fmt.Errorf("pausing a listener: %w", err)
	}
	l.accepting.Lock()
	err := l.socket.SetDeadline(time.Time{})
	l.accepting.Unlock()
	if err != nil {
		return fmt.Errorf("pausing a listener: %w", err)
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for l.unknown.Load() > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("pausing a listener: %w", context.Cause(ctx))
		}
	}
	return nil
}

// Resume ends a Pause.
func (l *Listener) Resume() {
	if resumed := l.pause.Swap(nil); resumed != nil {
		close(*resumed)
	}
}

// Leave leaves the socket to the other process: Close does not remove its path.
func (l *Listener) Leave() { l.removeAtEnd(false) }

// Own makes the socket of another process this one's: Close removes its path.
func (l *Listener) Own() { l.removeAtEnd(true) }

// tracked is a connection that counts as unknown to its server until it is read or closed.
type tracked struct {
	net.Conn
	known func()
	close func() error
	tap   Tap  // nil: none
	read  bool // only the goroutine that reads uses it
}

// Read implements net.Conn.
func (c *tracked) Read(p []byte) (int, error) {
	if !c.read {
		c.read = true
		c.known()
	}
	n, err := c.Conn.Read(p)
	if c.tap != nil && n > 0 {
		c.tap.Read(p[:n])
	}
	return n, err //nolint:wrapcheck // it is the same connection
}

// Close implements net.Conn. A connection that drains is closed for writing, and for reading when
// the client has closed it, or after drainTime.
func (c *tracked) Close() error {
	c.known()
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if c.tap == nil || !ok || !c.tap.Drains() {
		return c.close()
	}
	time.AfterFunc(drainTime, func() { _ = c.close() })
	return half.CloseWrite() //nolint:wrapcheck // it is the same connection
}

// SyscallConn implements syscall.Conn.
func (c *tracked) SyscallConn() (syscall.RawConn, error) {
	if s, ok := c.Conn.(syscall.Conn); ok {
		return s.SyscallConn() //nolint:wrapcheck // it is the same connection
	}
	return nil, errors.ErrUnsupported
}
