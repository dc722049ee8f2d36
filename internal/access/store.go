// SPDX-License-Identifier: Apache-2.0

package access

import (
	"time"

	"github.com/holdgate/holdgate/internal/reload"
)

// Store has the keys of a file, as of its last valid version.
type Store = reload.File[Keys]

// Load reads a keys file now, and again whenever it changes. A change to an invalid file is
// ignored. limiter counts the quotas; nil: this router counts alone.
func Load(path string, limiter Limiter, o reload.Options) (*Store, error) {
	return reload.Load(path, func(data []byte, current *Keys) (*Keys, error) {
		keys, err := Parse(data)
		if err != nil {
			return nil, err
		}
		keys.share(limiter)
		keys.takeOver(current, time.Now())
		return keys, nil
	}, o)
}
