// SPDX-License-Identifier: Apache-2.0

package shared

import (
	"errors"
	"strings"

	"github.com/valkey-io/valkey-go"
)

// complaint is what an operator is told of a server that cannot be used.
type complaint struct {
	message string
	advice  string // what to do about it; empty if the error says that
}

// complain logs why the server cannot be used. Until it can be, each reason is logged once, and
// again only after another one.
func (c *Client) complain(err error) {
	said := c.complaint(err)
	if c.said.Swap(said) == said {
		return
	}
	line := c.log.Warn().Err(err).Strs("server", c.option.InitAddress)
	if said.advice != "" {
		line = line.Str("advice", said.advice)
	}
	line.Msg(said.message)
}

// complaint returns the complaint of a call that failed with err.
func (c *Client) complaint(err error) complaint {
	answer := new(valkey.ValkeyError)
	if !errors.As(err, &answer) {
		return complaint{message: "--shared: the server does not answer: this router decides alone until it does"}
	}
	said := complaint{message: "--shared: the server refuses calls: this router decides alone until it accepts them"}
	code, _, _ := strings.Cut(answer.Error(), " ")
	switch code {
	case "NOAUTH", "WRONGPASS":
		said.advice = "--shared-password-file must have the server's password, or its user and the password on two lines"
	case "NOPERM":
		said.advice = "the server's user needs scripts, publish, subscribe, and all keys and channels that begin with {" + c.prefix
	}
	return said
}
