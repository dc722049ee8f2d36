// SPDX-License-Identifier: Apache-2.0

package config

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/settings"
)

func TestABodyThatIsTakenCanBeHeld(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"all below one body":        {[]string{"--wake-hold-max-bytes=9MiB"}, "--wake-hold-max-bytes is 9MiB: must not be below --max-request-bytes: a larger body could never be held"},
		"all is one body":           {[]string{"--wake-hold-max-bytes=10MiB"}, ""},
		"a model below one body":    {[]string{"--wake-hold-max-bytes-per-model=9MiB"}, "--wake-hold-max-bytes-per-model is 9MiB: must not be below --max-request-bytes"},
		"a model is one body":       {[]string{"--wake-hold-max-bytes-per-model=10MiB"}, ""},
		"a model has all":           {[]string{"--wake-hold-max-bytes-per-model=256MiB"}, ""},
		"a model has more than all": {[]string{"--wake-hold-max-bytes-per-model=257MiB"}, "--wake-hold-max-bytes-per-model is 257MiB: must not be above --wake-hold-max-bytes"},
	} {
		serve, _, err := parse(t, c.args...)
		require.NoError(t, err, name)
		if c.want == "" {
			require.NoError(t, serve.Validate(), name)
		} else {
			require.ErrorContains(t, serve.Validate(), c.want, name)
		}
	}
}

func TestADrainTakesAsLongAsAHold(t *testing.T) {
	t.Parallel()
	for want, args := range map[time.Duration][]string{
		5 * time.Minute: nil,
		time.Minute:     {"--wake-hold-budget=1m"},
		time.Second:     {"--wake-hold-budget=1m", "--drain-timeout=1s"},
	} {
		c, _, err := parse(t, args...)
		require.NoError(t, err)
		require.Equal(t, want, c.DrainTime())
	}
}

func TestOneModelHasHalfOfTheHeldBytes(t *testing.T) {
	t.Parallel()
	for want, args := range map[settings.Bytes][]string{
		128 << 20: nil,
		10 << 20:  {"--wake-hold-max-bytes=16MiB"}, // and room for one body in any case
		20 << 20:  {"--wake-hold-max-bytes-per-model=20MiB"},
	} {
		c, _, err := parse(t, args...)
		require.NoError(t, err)
		require.Equal(t, want, c.HoldBytesPerModel())
	}
}

func TestSettingsThatAreSeldomMeantAreWarnedOf(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"": nil,
		"--wake-hold-max is 1000 and --wake-hold-max-total is 1000: ":                         {"--wake-hold-max=1000"},
		"--wake-hold-max-bytes is 300MiB, more than half of --max-body-bytes-total, 512MiB: ": {"--wake-hold-max-bytes=300MiB"},
	} {
		c, _, err := parse(t, args...)
		require.NoError(t, err)
		require.NoError(t, c.Validate(), "a warning does not refuse")
		if want == "" {
			require.Empty(t, c.Warnings())
			continue
		}
		require.Len(t, c.Warnings(), 1)
		require.Contains(t, c.Warnings()[0], want)
	}
}
