// SPDX-License-Identifier: Apache-2.0

// Package config has the settings of holdgate serve: its flags, the file with the same
// names, and their checks. It also makes the logger of all commands.
package config

import (
	"fmt"
	"io"
	"time"

	"github.com/rs/zerolog"
)

// Log formats.
const (
	LogText = "text"
	LogJSON = "json"
)

// Logger returns the logger for a --log-format (text or json) and a --log-level (debug,
// info, warn or error).
func Logger(w io.Writer, format, level string) (zerolog.Logger, error) {
	lvl, err := parseLevel(level)
	if err != nil {
		return zerolog.Nop(), err
	}
	switch format {
	case LogJSON:
	case LogText:
		w = zerolog.ConsoleWriter{Out: w, NoColor: true, TimeFormat: "15:04:05.000"}
	default:
		return zerolog.Nop(), fmt.Errorf("--log-format: %q is not known: use text or json", format)
	}
	return zerolog.New(w).Level(lvl).Hook(timestamp{}), nil
}

var levels = map[string]zerolog.Level{
	"debug": zerolog.DebugLevel,
	"info":  zerolog.InfoLevel,
	"warn":  zerolog.WarnLevel,
	"error": zerolog.ErrorLevel,
}

func parseLevel(s string) (zerolog.Level, error) {
	if l, ok := levels[s]; ok {
		return l, nil
	}
	return zerolog.NoLevel, fmt.Errorf("--log-level: %q is not known: use debug, info, warn or error", s)
}

// timestamp adds the time with milliseconds. zerolog's own timestamp has whole seconds unless
// a global variable is changed.
type timestamp struct{}

// Run implements zerolog.Hook.
func (timestamp) Run(e *zerolog.Event, _ zerolog.Level, _ string) {
	e.Str(zerolog.TimestampFieldName, time.Now().UTC().Format("2006-01-02T15:04:05.000Z07:00"))
}
