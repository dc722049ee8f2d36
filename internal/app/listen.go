// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/sys/unix"

	"github.com/holdgate/holdgate/internal/config"
	"github.com/holdgate/holdgate/internal/regular"
	"github.com/holdgate/holdgate/internal/takeover"
)

// listeners are the open ports.
type listeners struct {
	envoy, agents, admin net.Listener
	keda                 net.Listener // nil without --keda-listen
	// sockets are the sockets of the ports that another process can take over, by flag, and
	// that of --takeover-socket. There are none without --takeover.
	sockets map[string]*takeover.Listener
}

// open opens all listeners, with the sockets of before, which is nil if there are none. If one
// fails, it closes those that are open.
func (l *listeners) open(ctx context.Context, c *config.Serve, limits portLimits, before *predecessor) (err error) {
	var undo cleanups
	defer undo.onError(&err)
	l.sockets = map[string]*takeover.Listener{}
	for _, port := range []struct {
		flag, value string
		to          *net.Listener
		limit       int
	}{
		{"extproc-listen", c.ExtProcListen, &l.envoy, limits.envoy},
		{"agents-listen", c.AgentsListen, &l.agents, limits.agents},
		{"admin-listen", c.AdminListen, &l.admin, limits.admin},
		{"keda-listen", c.KEDAListen, &l.keda, limits.keda},
	} {
		if port.value == "" {
			continue
		}
		listener, err := l.listen(ctx, c, socketFor{port.flag, port.value}, before)
		if err != nil {
			return fmt.Errorf("--%s %s: %w", port.flag, port.value, withAdvice(err))
		}
		undo.add(listener.Close)
		*port.to = netutil.LimitListener(listener, port.limit)
	}
	if path := c.TakeoverPath(); path != "" {
		if _, err := l.listen(ctx, c, socketFor{takeoverSocket, "unix://" + path}, before); err != nil {
			return fmt.Errorf("--%s %s: %w", takeoverSocket, path, withAdvice(err))
		}
	}
	return nil
}

// takeoverSocket is the flag of the socket over which processes take over from one another.
const takeoverSocket = "takeover-socket"

// socketFor is a flag with an address to listen on.
type socketFor struct{ flag, address string }

// listen listens on an address, or on the socket that the process before has for it.
func (l *listeners) listen(ctx context.Context, c *config.Serve, s socketFor, before *predecessor) (net.Listener, error) {
	var listener net.Listener
	if adopted := before.socket(s); adopted != nil {
		listener = adopted
	} else {
		var err error
		if listener, err = listen(ctx, s.address); err != nil {
			return nil, err
		}
	}
	if c.Takeover {
		socket, err := replaceable(listener)
		if err != nil {
			return nil, err
		}
		l.sockets[s.flag], listener = socket, socket
	}
	if listener.Addr().Network() == "unix" {
		return pidListener{listener}, nil
	}
	return listener, nil
}

// replaceable returns a listener whose socket another process can take over. It closes the given
// listener if it returns an error.
func replaceable(l net.Listener) (*takeover.Listener, error) {
	if socket, ok := l.(*takeover.Listener); ok {
		return socket, nil
	}
	socket, err := takeover.NewListener(l)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("--takeover: %w", err), l.Close())
	}
	return socket, nil
}

// close closes the listeners that are open.
func (l *listeners) close() error {
	var errs []error
	for _, listener := range []net.Listener{l.envoy, l.agents, l.admin, l.keda} {
		if listener != nil {
			errs = append(errs, listener.Close())
		}
	}
	if socket := l.sockets[takeoverSocket]; socket != nil {
		errs = append(errs, socket.Close())
	}
	return errors.Join(errs...)
}

// withAdvice adds to an error of listening what to do about it.
func withAdvice(err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%w: end what listens there, or choose another address", err)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%w: this user may not listen there: choose another address, such as a socket below $XDG_RUNTIME_DIR", err)
	}
	return err
}

func listen(ctx context.Context, value string) (net.Listener, error) {
	network, address := config.Address(value)
	if network == "unix" {
		if err := clearSocket(address); err != nil {
			return nil, err
		}
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("listening: %w", err)
	}
	if network == "unix" {
		// Only this user may connect, so Envoy must run as the same user.
		if err := os.Chmod(address, 0o600); err != nil {
			return nil, errors.Join(fmt.Errorf("listening: %w", err), l.Close())
		}
	}
	return l, nil
}

// pidListener sets the remote address of the connections of a unix socket, which have none,
// to the id of the peer's process. It distinguishes an Envoy that was restarted from the one
// before.
type pidListener struct{ net.Listener }

// Accept implements net.Listener.
func (l pidListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return pidConn{Conn: conn, pid: peerPID(conn)}, nil
}

type pidConn struct {
	net.Conn
	pid *net.UnixAddr
}

// RemoteAddr implements net.Conn.
func (c pidConn) RemoteAddr() net.Addr { return c.pid }

func peerPID(conn net.Conn) *net.UnixAddr {
	addr := &net.UnixAddr{Net: "unix"}
	raw, ok := conn.(syscall.Conn)
	if !ok {
		return addr
	}
	control, err := raw.SyscallConn()
	if err != nil {
		return addr
	}
	// If the process has ended meanwhile, the name stays empty.
	_ = control.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			addr.Name = fmt.Sprintf("pid %d", cred.Pid)
		}
	})
	return addr
}

// clearSocket creates the directory and removes a socket that a killed process has left. If a
// process accepts connections on the socket, it is in use, which is an error.
func clearSocket(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return fmt.Errorf("making the socket's directory: %w", err)
	}
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking for a stale socket: %w", err)
	}
	if info.Mode().Type() != os.ModeSocket {
		return fmt.Errorf("%s exists and is not a socket", path)
	}
	if owner := regular.OwnerOf(info); owner != os.Geteuid() {
		return fmt.Errorf("%s was made by user %s: remove it as that user, or listen in a directory that only this user may write", path, regular.UserName(owner))
	}
	conn, err := net.DialTimeout("unix", path, time.Second) //nolint:noctx // it has its own limit
	if err == nil {
		_ = conn.Close()
		return fmt.Errorf("%s is in use by another process", path)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("removing a stale socket: %w", err)
	}
	return nil
}
