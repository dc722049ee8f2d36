// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes is a number of bytes, written as an integer or with one of the suffixes KiB, MiB and
// GiB. It is a pflag.Value and a TextUnmarshaler.
type Bytes int64

// units are sorted by size, so that String uses the largest possible unit.
var units = []struct {
	suffix string
	size   int64
}{
	{"GiB", 1 << 30},
	{"MiB", 1 << 20},
	{"KiB", 1 << 10},
}

// ParseBytes parses a size, which has no sign and no fraction.
func ParseBytes(s string) (Bytes, error) {
	digits, size := s, int64(1)
	for _, u := range units {
		if number, ok := strings.CutSuffix(s, u.suffix); ok {
			digits, size = strings.TrimSuffix(number, " "), u.size
			break
		}
	}
	if digits == "" || strings.Trim(digits, "0123456789") != "" {
		return 0, fmt.Errorf("must be a whole number of bytes, or one with KiB, MiB or GiB, is %q", s)
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n > math.MaxInt64/size {
		return 0, fmt.Errorf("is too large: %q", s)
	}
	return Bytes(n * size), nil
}

// String returns the shortest exact form.
func (b Bytes) String() string {
	for _, u := range units {
		if b != 0 && int64(b)%u.size == 0 {
			return strconv.FormatInt(int64(b)/u.size, 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// Set implements pflag.Value.
func (b *Bytes) Set(s string) error {
	n, err := ParseBytes(s)
	if err != nil {
		return err
	}
	*b = n
	return nil
}

// Type returns the word that help texts use for the value.
func (b *Bytes) Type() string { return "bytes" }

// MarshalText returns the same text as String.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText parses text as Set does.
func (b *Bytes) UnmarshalText(text []byte) error { return b.Set(string(text)) }
