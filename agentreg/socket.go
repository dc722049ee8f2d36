// SPDX-License-Identifier: Apache-2.0

package agentreg

import "fmt"

// maxSocketPath is the longest path of a unix socket on Linux.
const maxSocketPath = 107

// CheckSocketPath says what is wrong with the path of a unix socket, nil for nothing.
// The system says of one that is too long no more than that it is invalid.
func CheckSocketPath(path string) error {
	if len(path) > maxSocketPath {
		return fmt.Errorf("the path of a unix socket can have at most %d bytes, and %s has %d: use a shorter directory", maxSocketPath, path, len(path))
	}
	return nil
}
