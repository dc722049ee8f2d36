// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"time"

	"github.com/spf13/pflag"
)

// Flag declares a flag that sets a field, whose current value is the default.
func Flag(f *pflag.FlagSet, field any, name, help string) {
	switch p := field.(type) {
	case *string:
		f.StringVar(p, name, *p, help)
	case *bool:
		f.BoolVar(p, name, *p, help)
	case *int:
		f.IntVar(p, name, *p, help)
	case *time.Duration:
		f.DurationVar(p, name, *p, help)
	case *[]string:
		f.StringSliceVar(p, name, *p, help)
	case pflag.Value:
		f.Var(p, name, help)
	}
}
