// SPDX-License-Identifier: Apache-2.0

package access

import (
	"time"

	"github.com/holdgate/holdgate/internal/reload"
)

// Store has the keys of a file, as of its last valid version.
type Store = reload.File[Keys]

// Load reads a keys file, and again whenever it changes. An invalid version is ignored.
func Load(path string, o reload.Options) (*Store, error) {
	return reload.Load(path, func(data []byte, inForce *Keys) (*Keys, error) {
		keys, err := Parse(data)
		if err != nil {
			return nil, err
		}
		keys.takeOver(inForce, time.Now())
		return keys, nil
	}, o)
}
