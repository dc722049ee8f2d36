// SPDX-License-Identifier: Apache-2.0

package up

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/internal/regular"
	"github.com/holdgate/holdgate/internal/unixsocket"
)

// lock creates the directory if necessary and locks it, so that no other run uses it.
func lock(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the directory of sockets and logs: %w", err)
	}
	f, err := regular.Append(filepath.Join(dir, "lock"))
	if err != nil {
		return nil, fmt.Errorf("locking the directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%s is in use by another holdgate up: give each its own directory", dir)
	}
	return func() { _ = f.Close() }, nil
}

// checkSockets returns an error if the directory's path is too long for the paths of its
// sockets.
func (r *run) checkSockets() error {
	for _, name := range []string{envoy.ExtProcSocket, envoy.RelaySocket, envoy.ReholdSocket, envoy.AdminSocket, agentsSocket} {
		if err := unixsocket.CheckPath(r.path(name)); err != nil {
			return fmt.Errorf("--dir: %w", err)
		}
	}
	return nil
}

// usualAdmin is the address at which commands such as holdgate status expect a router.
const usualAdmin = "127.0.0.1:9003"

// adminAddress returns the address of serve's admin API: the one that the file names, or
// else usualAdmin, or a port that the system chooses if that is in use.
func adminAddress(ctx context.Context, named string) string {
	if named != "" {
		return named
	}
	if l, err := new(net.ListenConfig).Listen(ctx, "tcp", usualAdmin); err == nil {
		_ = l.Close()
		return usualAdmin
	}
	return "127.0.0.1:0"
}

// checkFree returns an error if a process listens on an address of the file. The check is
// needed since two Envoys can listen on one address: each would get some of the requests.
func checkFree(ctx context.Context, key, address, advice string) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		err = fmt.Errorf("%s: %s cannot be used: %w", key, address, err)
		if errors.Is(err, syscall.EADDRINUSE) {
			err = fmt.Errorf("%w: end what listens there, or %s", err, advice)
		}
		return err
	}
	return l.Close()
}
