// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/holdgate/holdgate/internal/settings"
)

// setting is one flag of holdgate serve, which is also a key of its file.
type setting struct {
	name    string
	text    *string // the field, if it is a string
	declare func(*pflag.FlagSet)
	check   func(*rules)

	secret   bool     // it names a file that holds a secret
	listens  bool     // it is an address to listen on
	goesWith []string // flags that it needs
}

// flagOf returns the setting of a field: its name, its default, its help and the rules
// for its value. A rule returns what is wrong, "" for nothing.
func flagOf[T any](field *T, name string, value T, help string, valid ...func(T) string) setting {
	text, _ := any(field).(*string)
	return setting{
		name: name, text: text,
		declare: func(f *pflag.FlagSet) {
			*field = value
			settings.Flag(f, field, name, help)
		},
		check: func(r *rules) {
			for _, rule := range valid {
				r.check(name, *field, rule(*field))
			}
		},
	}
}

// listOf is flagOf for a list that is empty by default, with rules for its elements.
func listOf(field *[]string, name, help string, valid func(string) string) setting {
	s := flagOf(field, name, nil, help)
	s.check = func(r *rules) {
		for _, element := range *field {
			r.check(name, element, valid(element))
		}
	}
	return s
}

// with returns the setting as one that needs other flags.
func (s setting) with(flags ...string) setting {
	s.goesWith = flags
	return s
}

// secretFile returns the setting as one that names a file with a secret.
func (s setting) secretFile() setting {
	s.secret = true
	return s
}

// address returns the setting as one of an address to listen on.
func (s setting) address() setting {
	s.listens = true
	return s
}

// rules collects the flags whose values break a rule.
type rules struct{ settings.Problems }

// check adds a problem of a flag unless message is empty.
func (r *rules) check(flag string, value any, message string) {
	if message != "" {
		r.Add(fmt.Sprintf("--%s is %v", flag, value), "%s", message)
	}
}

// require adds a problem of a flag unless ok.
func (r *rules) require(ok bool, flag string, value any, message string) {
	if !ok {
		r.check(flag, value, message)
	}
}

// unless returns message unless ok.
func unless(ok bool, message string) string {
	if ok {
		return ""
	}
	return message
}

func positive[T int | settings.Bytes | time.Duration](value T) string {
	return unless(value > 0, "must be above 0")
}

func notNegative[T int | settings.Bytes | time.Duration](value T) string {
	return unless(value >= 0, "must not be negative")
}

// oneOf is the rule of a setting with a few possible values.
func oneOf(values ...string) func(string) string {
	last := len(values) - 1
	message := "must be " + strings.Join(values[:last], ", ") + " or " + values[last]
	return func(value string) string {
		if slices.Contains(values, value) {
			return ""
		}
		return message
	}
}
