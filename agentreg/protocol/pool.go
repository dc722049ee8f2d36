// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"crypto/sha256"
	"errors"
	"net/netip"
	"path/filepath"
	"regexp"
)

// A pool lane is a listener of Envoy on a unix socket, behind which an endpoint picker chooses
// the engine. A backend may be the lane of a pool. Its address is one that no engine can have:
// it only tells the lanes apart, and Envoy finds the lane by the pool's name.

var (
	poolName   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)
	poolSocket = regexp.MustCompile(`^pool-(.+)\.sock$`)
)

// CheckPool returns an error unless name is valid as the name of a pool.
func CheckPool(name string) error {
	if !poolName.MatchString(name) {
		return errors.New("must have up to 63 letters, digits and ._-, and begin with a letter or digit")
	}
	return nil
}

// PoolSocket returns the name of the socket of a pool's lane.
func PoolSocket(pool string) string { return "pool-" + pool + ".sock" }

// PoolOf returns the name of the pool whose lane has a socket, empty for another socket.
func PoolOf(path string) string {
	m := poolSocket.FindStringSubmatch(filepath.Base(path))
	if len(m) != 2 || CheckPool(m[1]) != nil {
		return ""
	}
	return m[1]
}

// PoolAddress returns the address that stands for the lane of a pool: port 1 of a loopback
// address, where nothing listens.
func PoolAddress(pool string) netip.AddrPort {
	sum := sha256.Sum256([]byte(pool))
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 128 | sum[0], sum[1], sum[2]}), 1)
}
