// SPDX-License-Identifier: Apache-2.0

package shared

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/valkey-io/valkey-go"
)

// Script is a Lua script.
type Script struct {
	name string
	text string
	lua  *valkey.Lua
}

// NewScript returns a script. name is the metrics' label.
func NewScript(name, text string) *Script {
	return &Script{name: name, text: text, lua: valkey.NewLuaScript(text)}
}

// Run runs the script on behalf of a request.
func (s *Script) Run(ctx context.Context, c *Client, keys, args []string) valkey.ValkeyResult {
	return s.run(ctx, c, CallTimeout, keys, args)
}

// RunSlowly runs the script when no request waits for it.
func (s *Script) RunSlowly(ctx context.Context, c *Client, keys, args []string) valkey.ValkeyResult {
	return s.run(ctx, c, slowTimeout, keys, args)
}

// RunApart runs the script when no request waits for it, on a connection that no other call
// shares, so that its large values delay none.
func (s *Script) RunApart(ctx context.Context, c *Client, keys, args []string) valkey.ValkeyResult {
	return c.call(ctx, s.name, largeTimeout, func(ctx context.Context, server valkey.Client) valkey.ValkeyResult {
		return server.Do(ctx, server.B().Arbitrary("EVAL").Args(s.text, strconv.Itoa(len(keys))).Keys(keys...).Args(args...).Blocking())
	})
}

// RunLate runs the script on behalf of a request, for a caller that wants to know what became of
// it even if the answer is late. It calls answered once: before it returns, or when a late answer
// comes, or none has come for a second.
func (s *Script) RunLate(ctx context.Context, c *Client, keys, args []string, answered func(valkey.ValkeyResult)) {
	r := c.call(ctx, s.name, CallTimeout, func(_ context.Context, server valkey.Client) valkey.ValkeyResult {
		slow, cancel := context.WithTimeout(ctx, slowTimeout)
		defer cancel()
		r := s.lua.Exec(slow, server, keys, args)
		answered(r)
		return r
	})
	if errors.Is(r.Error(), ErrDown) {
		answered(r) // the call was not made
	}
}

func (s *Script) run(ctx context.Context, c *Client, timeout time.Duration, keys, args []string) valkey.ValkeyResult {
	return c.call(ctx, s.name, timeout, func(ctx context.Context, server valkey.Client) valkey.ValkeyResult {
		return s.lua.Exec(ctx, server, keys, args)
	})
}

// LuaNow begins scripts that need the time. It sets now to the milliseconds of the server's clock,
// so that those of the routers need not agree.
const LuaNow = `
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
`
