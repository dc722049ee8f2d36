// SPDX-License-Identifier: Apache-2.0

// Package unixsocket checks the paths of unix sockets.
package unixsocket

import "fmt"

// maxPath is the longest path of a unix socket on Linux, in bytes.
const maxPath = 107

// CheckPath returns what is wrong with the path of a unix socket, nil if nothing is.
// The system reports a path that is too long only as invalid.
func CheckPath(path string) error {
	if len(path) > maxPath {
		return fmt.Errorf("the path of a unix socket can have at most %d bytes, and %s has %d: use a shorter directory", maxPath, path, len(path))
	}
	return nil
}
