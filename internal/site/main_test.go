// SPDX-License-Identifier: Apache-2.0

package site

import (
	"testing"

	"github.com/holdgate/holdgate/internal/shared/valkeytest"
)

func TestMain(m *testing.M) { valkeytest.VerifyNoLeaks(m) }
