// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"
)

var _ pflag.Value = (*Bytes)(nil)

func TestParseBytesReadsPlainNumbersAndBinaryUnits(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Bytes{
		"0":             0,
		"1":             1,
		"007":           7,
		"10485760":      10 << 20,
		"1KiB":          1 << 10,
		"10MiB":         10 << 20,
		"10 MiB":        10 << 20,
		"2GiB":          2 << 30,
		"8589934591GiB": 8589934591 << 30,
	} {
		got, err := ParseBytes(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
}

func TestParseBytesRefusesEverythingElse(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", " ", "KiB", " MiB", "-1", "+1", "1.5MiB", "1e3", "0x10", "1_000", "10MB", "10M", "10mib", "10KiBMiB", "10  MiB", " 1", "1 ", "1B", "\u0661",
	} {
		_, err := ParseBytes(text)
		require.ErrorContains(t, err, "must be a whole number of bytes", text)
		require.ErrorContains(t, err, "KiB, MiB or GiB", text)
	}
	for _, text := range []string{"9223372036854775808", "8589934592GiB", "99999999999999999999KiB"} {
		_, err := ParseBytes(text)
		require.ErrorContains(t, err, "is too large", text)
	}
}

func TestBytesStringIsReadBackAsTheSame(t *testing.T) {
	t.Parallel()
	require.Equal(t, "10MiB", Bytes(10<<20).String())
	require.Equal(t, "1025", Bytes(1025).String())
	require.Equal(t, "0", Bytes(0).String())
	rapid.Check(t, func(t *rapid.T) {
		shift := rapid.SampledFrom([]int{0, 10, 20, 30}).Draw(t, "shift")
		want := Bytes(rapid.Int64Range(0, 1<<32).Draw(t, "n") << shift)
		got, err := ParseBytes(want.String())
		require.NoError(t, err)
		require.Equal(t, want, got)
	})
}

func TestBytesIsAFlagAndAConfigurationValue(t *testing.T) {
	t.Parallel()
	size := Bytes(10 << 20)
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	flags.Var(&size, "max-request-bytes", "the largest body")
	require.Contains(t, flags.FlagUsages(), "--max-request-bytes bytes")
	require.Contains(t, flags.FlagUsages(), "(default 10MiB)")
	require.NoError(t, flags.Parse([]string{"--max-request-bytes=512KiB"}))
	require.Equal(t, Bytes(512<<10), size)
	require.ErrorContains(t, flags.Parse([]string{"--max-request-bytes=much"}), "must be a whole number of bytes")
	require.Equal(t, Bytes(512<<10), size, "a bad value changes nothing")

	var file struct {
		A Bytes `yaml:"a"`
		B Bytes `yaml:"b"`
	}
	require.NoError(t, yaml.Unmarshal([]byte("a: 64MiB\nb: 1024\n"), &file))
	require.Equal(t, Bytes(64<<20), file.A)
	require.Equal(t, Bytes(1024), file.B)
	require.Error(t, yaml.Unmarshal([]byte("a: -1\n"), &file))
	text, err := yaml.Marshal(file)
	require.NoError(t, err)
	require.Equal(t, "a: 64MiB\nb: 1KiB\n", string(text))
}
