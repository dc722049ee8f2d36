// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLoggerJSON(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log, err := Logger(&out, "json", "info")
	require.NoError(t, err)
	log.Debug().Msg("not shown")
	log.Info().Str("model", "a\nb").Msg("waking")
	var line struct{ Level, Message, Model, Time string }
	require.NoError(t, json.Unmarshal(out.Bytes(), &line))
	require.Equal(t, "waking", line.Message)
	require.Equal(t, "info", line.Level)
	require.Equal(t, "a\nb", line.Model)
	at, err := time.Parse(time.RFC3339Nano, line.Time)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), at, time.Minute)
	require.Len(t, line.Time, len("2006-01-02T15:04:05.000Z"))
}

func TestLoggerText(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log, err := Logger(&out, "text", "debug")
	require.NoError(t, err)
	log.Debug().Str("model", "a\nb").Msg("waking")
	require.Regexp(t, `^\d\d:\d\d:\d\d\.\d{3} DBG waking model="a\\nb"\n$`, out.String())
}

func TestLoggerNamesTheBadFlag(t *testing.T) {
	t.Parallel()
	_, err := Logger(&bytes.Buffer{}, "xml", "info")
	require.EqualError(t, err, `--log-format: "xml" is not known: use text or json`)
	_, err = Logger(&bytes.Buffer{}, "json", "loud")
	require.EqualError(t, err, `--log-level: "loud" is not known: use debug, info, warn or error`)
}
