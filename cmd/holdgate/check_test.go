// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheckWarnsOfSettingsThatAreSeldomMeant(t *testing.T) {
	t.Parallel()
	for arg, want := range map[string]string{
		"--wake-hold-max=999":  "",
		"--destination=route":  "warning: destination route: held requests of models whose policy names no destination get no keepalives: set --relay to the URL of the gateway's listener for clients\n",
		"--wake-hold-max=1000": "warning: --wake-hold-max is 1000 and --wake-hold-max-total is 1000: ",
	} {
		var out, warnings bytes.Buffer
		cmd := newCheckCommand()
		cmd.SetArgs([]string{arg})
		cmd.SetOut(&out)
		cmd.SetErr(&warnings)
		require.NoError(t, cmd.ExecuteContext(t.Context()))
		require.Equal(t, "ok\n", out.String())
		if want == "" {
			require.Empty(t, warnings.String())
		} else {
			require.Contains(t, warnings.String(), want)
		}
	}
}
