// SPDX-License-Identifier: Apache-2.0

package site

import (
	"crypto/sha256"
	"encoding/hex"
)

// hashOf returns 16 hexadecimal digits that stand for names in the name of a key. No name may
// contain a zero byte before the last.
func hashOf(names ...string) string {
	h := sha256.New()
	for i, name := range names {
		if i > 0 {
			h.Write([]byte{0})
		}
		h.Write([]byte(name))
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}
