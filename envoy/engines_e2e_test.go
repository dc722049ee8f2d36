// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package envoy

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// goodEngine starts an engine that answers with h and returns its ip:port.
func goodEngine(t testing.TB, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// echo answers with the request body. It reads the whole body first: net/http may lose
// what arrives after the first write.
func echo(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(body)
}

// refusingEngine returns a port that accepts no connection and that no other process
// can get meanwhile.
func refusingEngine(t testing.TB) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = syscall.Close(fd) })
	require.NoError(t, syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	name, err := syscall.Getsockname(fd)
	require.NoError(t, err)
	at := name.(*syscall.SockaddrInet4)
	return netip.AddrPortFrom(netip.AddrFrom4(at.Addr), uint16(at.Port)).String()
}

// dyingEngine starts an engine that reads each request to its end, writes last
// unchanged, and closes the connection.
func dyingEngine(t testing.TB, last string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				r, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, r.Body)
				_, _ = io.WriteString(c, last)
			}()
		}
	}()
	return l.Addr().String()
}

// rawEngine starts an engine that answers with text unchanged; requests receives what
// it was sent.
func rawEngine(t testing.TB, text string) (addr string, requests <-chan string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	seen := make(chan string, 16)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				var head strings.Builder
				lines := bufio.NewReader(c)
				for !strings.HasSuffix(head.String(), "\r\n\r\n") {
					line, err := lines.ReadString('\n')
					if err != nil {
						return
					}
					head.WriteString(line)
				}
				seen <- head.String()
				_, _ = io.WriteString(c, text)
			}()
		}
	}()
	return l.Addr().String(), seen
}
