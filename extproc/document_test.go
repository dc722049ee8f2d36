// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// docs/clients.md has every endpoint, and the status of a client that left.
func TestTheDocumentForClientsHasTheEndpoints(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/clients.md")
	require.NoError(t, err)
	for path, e := range endpoints {
		require.Contains(t, string(text), fmt.Sprintf("| `POST %s` | `%v` |", path, e.Kind))
	}
	require.Contains(t, string(text), fmt.Sprintf("| %d | |", StatusClientGone))
}
