// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNobody means that no process offers a takeover at a path.
var ErrNobody = errors.New("no process offers a takeover")

// maxSockets limits how many sockets are received.
const maxSockets = 16

// sendTime is how long the other process may take to read a message.
const sendTime = 10 * time.Second

// Conn is a connection to the other process. Send and Receive may be called at the same time,
// and Send from several goroutines.
type Conn struct {
	conn *net.UnixConn
	dec  *gob.Decoder

	sending sync.Mutex
	enc     *gob.Encoder
}

// Dial connects to the process that offers a takeover at a path.
func Dial(ctx context.Context, path string) (*Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, ErrNobody
	}
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", path, err)
	}
	return newConn(conn)
}

// acceptPause is the time until the next try when a connection could not be accepted.
const acceptPause = 100 * time.Millisecond

// Accept accepts the next connection of a process of the same user. Connections of others are
// closed. It returns an error when the listener is closed; another one, such as for want of a file
// descriptor, may pass.
func Accept(l net.Listener) (*Conn, error) {
	for {
		conn, err := l.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil, fmt.Errorf("accepting a takeover: %w", err)
		case err != nil:
			<-time.After(acceptPause)
			continue
		}
		if c, err := newConn(conn); err == nil {
			return c, nil
		}
	}
}

// newConn takes over a connection, which it closes if it returns an error.
func newConn(conn net.Conn) (*Conn, error) {
	if wrapped, ok := conn.(*tracked); ok {
		wrapped.known()
		conn = wrapped.Conn
	}
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("not a unix socket: %T", conn), conn.Close())
	}
	if err := checkUser(c); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &Conn{conn: c, dec: gob.NewDecoder(c), enc: gob.NewEncoder(c)}, nil
}

// checkUser returns an error unless the other process runs as the same user.
func checkUser(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return fmt.Errorf("finding the user of the other process: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, credErr); err != nil {
		return fmt.Errorf("finding the user of the other process: %w", err)
	}
	if int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("the other process runs as user %d, not as this user", cred.Uid)
	}
	return nil
}

// Close closes the connection.
func (c *Conn) Close() error {
	if err := c.conn.Close(); err != nil {
		return fmt.Errorf("closing the takeover's connection: %w", err)
	}
	return nil
}

// Send sends a message.
func (c *Conn) Send(m *Message) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	if err := c.conn.SetWriteDeadline(time.Now().Add(sendTime)); err != nil {
		return fmt.Errorf("sending to the other process: %w", err)
	}
	if err := c.enc.Encode(m); err != nil {
		return fmt.Errorf("sending to the other process: %w", err)
	}
	return nil
}

// Receive receives the next message, within a time; 0: however long it takes.
func (c *Conn) Receive(within time.Duration) (*Message, error) {
	var deadline time.Time
	if within > 0 {
		deadline = time.Now().Add(within)
	}
	if err := c.conn.SetReadDeadline(deadline); err != nil {
		return nil, fmt.Errorf("receiving from the other process: %w", err)
	}
	m := &Message{}
	if err := c.dec.Decode(m); err != nil {
		return nil, fmt.Errorf("receiving from the other process: %w", err)
	}
	return m, nil
}

// SendSockets sends sockets that listen, before the first message.
func (c *Conn) SendSockets(list []*Listener) error {
	var fds []int
	for _, l := range list {
		fd, err := l.fd()
		if err != nil {
			return err
		}
		fds = append(fds, fd)
	}
	if _, _, err := c.conn.WriteMsgUnix([]byte{byte(len(fds))}, unix.UnixRights(fds...), nil); err != nil { //nolint:gosec // a handful
		return fmt.Errorf("sending sockets: %w", err)
	}
	return nil
}

// ReceiveSockets receives the sockets that the other process has sent before its first message.
func (c *Conn) ReceiveSockets(within time.Duration) (list []*Listener, err error) {
	if err := c.conn.SetReadDeadline(time.Now().Add(within)); err != nil {
		return nil, fmt.Errorf("receiving sockets: %w", err)
	}
	count, control := make([]byte, 1), make([]byte, unix.CmsgSpace(4*maxSockets))
	_, n, _, _, err := c.conn.ReadMsgUnix(count, control)
	if err != nil {
		return nil, fmt.Errorf("receiving sockets: %w", err)
	}
	fds, err := rights(control[:n])
	if err != nil {
		return nil, err
	}
	for _, fd := range fds {
		l, adoptErr := adopt(fd)
		err = errors.Join(err, adoptErr)
		list = append(list, l)
	}
	if err == nil && len(list) != int(count[0]) {
		err = fmt.Errorf("receiving sockets: %d of %d came", len(list), count[0])
	}
	if err != nil {
		closeAll(list)
		return nil, err
	}
	return list, nil
}

// rights returns the descriptors of a control message.
func rights(control []byte) (fds []int, err error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, fmt.Errorf("receiving sockets: %w", err)
	}
	for i := range messages {
		list, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return nil, fmt.Errorf("receiving sockets: %w", err)
		}
		fds = append(fds, list...)
	}
	return fds, nil
}

func closeAll(list []*Listener) {
	for _, l := range list {
		if l != nil {
			_ = l.Close()
		}
	}
}
