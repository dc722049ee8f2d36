// SPDX-License-Identifier: Apache-2.0

package access

import (
	"time"

	"github.com/holdgate/holdgate/internal/reload"
)

// Store is the keys file that is in force.
type Store = reload.File[Keys]

// Load reads a keys file and keeps its keys until a good one replaces it.
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
