// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/holdgate/holdgate/internal/settings"
)

// setting is one flag of holdgate serve, which is also a key of the file.
type setting struct {
	name    string
	text    *string // the field, if it is a string
	declare func(*pflag.FlagSet)
	check   func(*rules)

	secret   bool     // its value is the path of a file with a secret
	listens  bool     // its value is an address to listen on
	requires []string // flags that it needs
}

// flagOf returns the setting for a field, with its name, default, help and rules. A rule
// returns what is wrong with a value, "" if it is valid.
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

// withRequired returns the setting as one that needs the given flags to be set.
func (s setting) withRequired(flags ...string) setting {
	s.requires = flags
	return s
}

// secretFile returns the setting as one for a file with a secret.
func (s setting) secretFile() setting {
	s.secret = true
	return s
}

// address returns the setting as one for an address to listen on.
func (s setting) address() setting {
	s.listens = true
	return s
}

// rules collects the problems of flags.
type rules struct{ settings.Problems }

// login matches the user and the password of a URL, also of one that is malformed.
var login = regexp.MustCompile(`://\S*:\S*@`)

// check adds a problem of a flag unless message is empty. A password in the value is not shown.
func (r *rules) check(flag string, value any, message string) {
	if message != "" {
		shown := login.ReplaceAllString(fmt.Sprint(value), "://***@")
		r.Add(fmt.Sprintf("--%s is %s", flag, shown), "%s", message)
	}
}

// require adds a problem of a flag if ok is false.
func (r *rules) require(ok bool, flag string, value any, message string) {
	if !ok {
		r.check(flag, value, message)
	}
}

// messageUnless returns message if ok is false, "" otherwise.
func messageUnless(ok bool, message string) string {
	if ok {
		return ""
	}
	return message
}

func positive[T int | settings.Bytes | time.Duration](value T) string {
	return messageUnless(value > 0, "must be above 0")
}

func notNegative[T int | settings.Bytes | time.Duration](value T) string {
	return messageUnless(value >= 0, "must not be negative")
}

// oneOf returns the rule that a value is one of values.
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
