// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/holdgate/holdgate/extproc/extproctest"
)

// headOf reads headers given as pairs.
func headOf(t *testing.T, kv ...string) head {
	t.Helper()
	block, err := proto.Marshal(extproctest.HeaderMap(kv...))
	require.NoError(t, err)
	return readHead(block)
}

func TestHowLongAClientWaits(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		headers  []string
		patience time.Duration
		bad      bool
	}{
		"it does not say":       {nil, -1, false},
		"its own header":        {[]string{"x-wake-timeout", "20s"}, 20 * time.Second, false},
		"not at all":            {[]string{"x-wake-timeout", "0s"}, 0, false},
		"no duration":           {[]string{"x-wake-timeout", "20"}, 0, true},
		"negative":              {[]string{"x-wake-timeout", "-1s"}, -1, true},
		"empty":                 {[]string{"x-wake-timeout", ""}, 0, true},
		"the SDK's total":       {[]string{"x-stainless-timeout", "600"}, 599 * time.Second, false},
		"a fraction":            {[]string{"x-stainless-timeout", "2.5"}, 1500 * time.Millisecond, false},
		"a total of a second":   {[]string{"x-stainless-timeout", "1"}, 0, false},
		"a total of less":       {[]string{"x-stainless-timeout", "0.1"}, 0, false},
		"the SDK's nonsense":    {[]string{"x-stainless-timeout", "NOT_GIVEN"}, -1, false},
		"the SDK's NaN":         {[]string{"x-stainless-timeout", "NaN"}, -1, false},
		"the SDK's infinity":    {[]string{"x-stainless-timeout", "inf"}, -1, false},
		"both, ours is shorter": {[]string{"x-stainless-timeout", "600", "x-wake-timeout", "20s"}, 20 * time.Second, false},
		"both, ours is longer":  {[]string{"x-wake-timeout", "20m", "x-stainless-timeout", "600"}, 599 * time.Second, false},
	} {
		h := headOf(t, c.headers...)
		require.Equal(t, c.bad, h.badPatience, name)
		if !c.bad {
			require.Equal(t, c.patience, h.patience, name)
		}
	}
	require.Equal(t, 400, func() int {
		h := headOf(t, ":method", "POST", "x-wake-timeout", "soon")
		return h.refusal(1, false).Status
	}())
}

func TestKeepalivesComeInTimeForTheClientsReads(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		headers []string
		want    time.Duration
	}{
		"usual":             {nil, 15 * time.Second},
		"long reads":        {[]string{"x-stainless-read-timeout", "600"}, 15 * time.Second},
		"short reads":       {[]string{"x-stainless-read-timeout", "5"}, 2500 * time.Millisecond},
		"absurd reads":      {[]string{"x-stainless-read-timeout", "0.001"}, 500 * time.Millisecond},
		"nonsense":          {[]string{"x-stainless-read-timeout", "soon"}, 15 * time.Second},
		"off":               {[]string{"x-wake-keepalive", "OFF", "x-stainless-read-timeout", "5"}, 0},
		"another word: on":  {[]string{"x-wake-keepalive", "no"}, 15 * time.Second},
		"off for everybody": {[]string{"x-stainless-read-timeout", "5"}, 0},
	} {
		h := headOf(t, c.headers...)
		usual := 15 * time.Second
		if name == "off for everybody" {
			usual = 0
		}
		require.Equal(t, c.want, h.keepaliveEvery(usual), name)
	}
}

func TestAShortReadTimeoutBringsTheFirstKeepaliveForward(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		x := r.ask(r.t, extproctest.Request(chatPath, `{"model":"m","stream":true}`, "x-stainless-read-timeout", "4"))
		elapse(5 * time.Second)
		require.Equal(r.t, []string{`2s head 200`, `2s ": keep-alive\n"`, `4s ": keep-alive\n"`}, shorten(x.Events()))
		x.Reset()
	})
}

// shorten leaves out what follows a head's status.
func shorten(lines []string) []string {
	for i, l := range lines {
		if len(l) > 11 && l[3:7] == "head" {
			lines[i] = l[:11]
		}
	}
	return lines
}
