// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/agentreg/agent/engines"
	"github.com/holdgate/holdgate/internal/settings"
)

func TestFlagsAndKeysSetTheSameFields(t *testing.T) {
	t.Parallel()
	flags := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	var byFlags Config
	byFlags.Flags(flags)
	require.Equal(t, Config{
		Engine: engines.Custom, UnhealthyAfter: DefaultUnhealthyAfter, Slots: 1,
		WakeTimeout: DefaultWakeTimeout, StopGrace: DefaultStopGrace, DrainTimeout: DefaultDrainTimeout,
	}, byFlags, "the defaults")
	require.NoError(t, flags.Parse([]string{
		"--engine=vllm", "--health-path=/up", "--warmup=false", "--model=a,b", "--model=c", "--capacity=4", "--region=eu",
		"--exec-dir=/", "--exec-env=A=b", "--idle-timeout=1m", "--min-up-time=2s", "--wake-timeout=3m",
		"--group=gpu0", "--group-max-awake=2", "--memory=8GiB",
	}))

	byKeys := Config{UnhealthyAfter: DefaultUnhealthyAfter, StopGrace: DefaultStopGrace, DrainTimeout: DefaultDrainTimeout}
	var keys []string
	for _, s := range byKeys.settings() {
		if s.key != "" {
			require.NotContains(t, keys, s.key)
			keys = append(keys, s.key)
		}
	}
	text := `{engine: vllm, health_path: /up, warmup: false, models: ["a,b", c], slots: 4, region: eu, dir: /, env: {A: b},
		idle_timeout: 1m, min_up_time: 2s, wake_timeout: 3m, group: gpu0, max_awake: 2, memory: 8GiB}`
	require.NoError(t, settings.Rules{}.Parse([]byte(text), func(top settings.Value) { top.Fields(byKeys.Keys(keys...)) }))
	require.Equal(t, byFlags, byKeys)
	require.Equal(t, time.Minute, byKeys.IdleTimeout)

	require.Len(t, byKeys.Keys("slots", "region"), 2)
}

func TestTheWarmupFlagIsTrueOrFalse(t *testing.T) {
	t.Parallel()
	flags := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	var c Config
	c.Flags(flags)
	require.EqualError(t, flags.Parse([]string{"--warmup=maybe"}), `invalid argument "maybe" for "--warmup" flag: must be true or false`)
}
