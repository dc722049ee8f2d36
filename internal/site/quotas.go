// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"fmt"
	"strconv"

	"github.com/valkey-io/valkey-go"

	"github.com/holdgate/holdgate/internal/access"
	"github.com/holdgate/holdgate/internal/shared"
)

// Quotas count the requests of keys over all routers of a site. It is an access.Limiter.
//
// All buckets of a key are in one hash, which ends when they would be full again. The buckets
// are those of package access, which the routers charge alone without a server, so that both
// decide alike; no library for a limit on the client in use counts two buckets at once.
type Quotas struct {
	c *shared.Client
}

// NewQuotas returns the quotas of a site.
func NewQuotas(c *shared.Client) *Quotas { return &Quotas{c: c} }

// Routers is part of access.Limiter.
func (q *Quotas) Routers() int { return q.c.LastRouters() }

// Charge is part of access.Limiter.
func (q *Quotas) Charge(key string, limits []access.Limit, answered func([]access.Left, error)) {
	quota.RunLate(callContext(), q.c, q.keys(key), quotaArgs("charge", q.c.ID(), limits), func(r valkey.ValkeyResult) {
		answered(readLeft(r, len(limits)))
	})
}

// Peek is part of access.Limiter.
func (q *Quotas) Peek(key string, limits []access.Limit) ([]access.Left, error) {
	return readLeft(quota.Run(callContext(), q.c, q.keys(key), quotaArgs("peek", q.c.ID(), limits)), len(limits))
}

// keys returns the keys of the script.
func (q *Quotas) keys(key string) []string { return []string{q.c.Spread("quota", hashOf(key))} }

// callContext returns the context of a call.
func callContext() context.Context {
	return context.Background() //nolint:forbidigo // each call has a time limit, and need not end with its request
}

// quotaArgs returns the arguments of the script.
func quotaArgs(do, router string, limits []access.Limit) []string {
	args := append(make([]string, 0, 3+5*len(limits)), do, router, lifeMicros)
	for _, l := range limits {
		field := "all"
		if l.Model != "" {
			field = hashOf(l.Model)
		}
		args = append(args, field, strconv.Itoa(l.PerReplica), strconv.Itoa(l.Replicas), number(l.Expected), number(l.Owed))
	}
	return args
}

// largestLimit is the largest limit that the script puts in force, in requests per minute.
const largestLimit = 1e9

// readLeft returns what is left of n limits: for each two numbers, its tokens and the limit in
// force.
func readLeft(r valkey.ValkeyResult, n int) ([]access.Left, error) {
	texts, err := r.AsStrSlice()
	if err != nil {
		return nil, fmt.Errorf("counting a request: %w", err)
	}
	if len(texts) != 2*n {
		return nil, fmt.Errorf("counting a request: the server answers %d numbers for %d limits", len(texts), n)
	}
	left := make([]access.Left, 0, n)
	for i := 0; i < len(texts); i += 2 {
		tokens, err1 := strconv.ParseFloat(texts[i], 64)
		perMinute, err2 := strconv.ParseFloat(texts[i+1], 64)
		sane := tokens >= 0 && tokens <= perMinute && perMinute > 0 && perMinute <= largestLimit // NaN is not
		if err1 != nil || err2 != nil || !sane {
			return nil, fmt.Errorf("counting a request: the server answers %q of %q", texts[i], texts[i+1])
		}
		left = append(left, access.Left{Tokens: tokens, PerMinute: perMinute})
	}
	return left, nil
}

// number returns a number as scripts take it.
func number(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }

// lifeMicros is shared.Life in microseconds, as the script takes it.
var lifeMicros = strconv.FormatInt(shared.Life.Microseconds(), 10)

// quota counts a request, as access.Key.Charge does for a router alone.
//
// Its arguments are: charge or peek; the router; for how long the larger of two numbers of
// replicas holds that two routers know; and for each limit its field, the requests per minute
// and replica, the replicas, the tokens that a new bucket has, and the tokens that the router
// owes. It returns for each limit the tokens before the request, and the requests per minute.
//
// Times are in microseconds. A server whose clock is set back adds the tokens of the repeated
// time once more, rather than none until its clock is where it was.
var quota = shared.NewScript("quota", `
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local minute, largest = 60000000, 1000000000
local charge, router, life = ARGV[1] == 'charge', ARGV[2], tonumber(ARGV[3])

local function per_minute(b, replicas)
  return math.min(b.each * replicas, largest)
end

local function read(field, each, replicas, expected)
  local words = {}
  for word in string.gmatch(redis.call('HGET', KEYS[1], field) or '', '%S+') do
    words[#words + 1] = word
  end
  if #words == 8 then
    return {
      field = field, tokens = tonumber(words[1]), at = tonumber(words[2]), each = tonumber(words[3]),
      replicas = tonumber(words[4]), highest = tonumber(words[5]), highest_until = tonumber(words[6]),
      router = words[7], said = tonumber(words[8]),
    }
  end
  local b = {field = field, at = now, each = each, replicas = replicas, highest = 0, highest_until = now, router = router, said = now}
  b.tokens = math.min(expected, per_minute(b, replicas))
  return b
end

local function write(b)
  redis.call('HSET', KEYS[1], b.field, string.format('%.17g %.0f %.0f %.0f %.0f %.0f %s %.0f',
    b.tokens, b.at, b.each, b.replicas, b.highest, b.highest_until, b.router, b.said))
end

local function refill(b)
  local size = per_minute(b, b.replicas)
  b.tokens = math.min(size, b.tokens + math.max(0, now - b.at) / 1000000 * size / 60)
  b.at, b.said = now, math.min(b.said, now)
  b.highest_until = math.min(b.highest_until, now + minute)
end

local function adapt(b, each, replicas)
  b.each = each
  b.tokens = math.min(b.tokens, per_minute(b, b.replicas))
  if replicas < b.replicas and b.router ~= router and now < b.said + life then
    replicas = b.replicas
  else
    b.router, b.said = router, now
  end
  local before = b.replicas
  if now < b.highest_until then
    before = math.max(before, b.highest)
  end
  local added = 0
  if replicas ~= b.replicas then
    added = math.max(0, per_minute(b, replicas) - per_minute(b, before))
  end
  b.replicas = replicas
  b.tokens = math.min(b.tokens + added, per_minute(b, replicas))
  if replicas >= b.highest or now >= b.highest_until then
    b.highest, b.highest_until = replicas, now + minute
  end
end

local buckets, ok, answer = {}, true, {}
for i = 4, #ARGV, 5 do
  local each, replicas = tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
  local b = read(ARGV[i], each, replicas, tonumber(ARGV[i + 3]))
  refill(b)
  adapt(b, each, replicas)
  b.tokens = math.max(0, b.tokens - tonumber(ARGV[i + 4]))
  buckets[#buckets + 1] = b
  ok = ok and b.tokens >= 1
  answer[#answer + 1] = string.format('%.17g', b.tokens)
  answer[#answer + 1] = string.format('%.0f', per_minute(b, b.replicas))
end
if charge then
  for _, b in ipairs(buckets) do
    if ok then
      b.tokens = b.tokens - 1
    end
    write(b)
  end
  redis.call('PEXPIRE', KEYS[1], minute / 1000)
end
return answer
`)
