// SPDX-License-Identifier: Apache-2.0

package shared

import (
	"errors"
	"strings"

	"github.com/valkey-io/valkey-go"
)

// outage is what the log says of a server that cannot be used.
type outage struct {
	message string
	advice  string // what to do about it; empty if the error says that
}

// logOutage logs why the server cannot be used. Until it can be, each reason is logged once, and
// again only after another one.
func (c *Client) logOutage(err error) {
	o := c.outageOf(err)
	if c.said.Swap(o) == o {
		return
	}
	line := c.log.Warn().Err(err).Strs("server", c.option.InitAddress)
	if o.advice != "" {
		line = line.Str("advice", o.advice)
	}
	line.Msg(o.message)
}

// outageOf returns the outage of which a call failed with err.
func (c *Client) outageOf(err error) outage {
	answer := new(valkey.ValkeyError)
	if !errors.As(err, &answer) {
		return outage{message: "--shared: the server does not answer: this router decides alone until it does"}
	}
	o := outage{message: "--shared: the server refuses calls: this router decides alone until it accepts them"}
	switch code, _, _ := strings.Cut(answer.Error(), " "); code {
	case "NOAUTH", "WRONGPASS":
		o.advice = "--shared-password-file must have the server's password, or its user and the password on two lines"
	case "NOPERM", "ACL": // the second if a command in a script is refused
		o.advice = "give the server's user the keys and channels that begin with {" + c.prefix +
			", and all commands but the administrative ones: ~{" + c.prefix + "* &{" + c.prefix + "* +@all -@admin -@dangerous"
	}
	return o
}
