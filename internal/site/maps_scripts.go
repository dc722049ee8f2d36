// SPDX-License-Identifier: Apache-2.0

package site

import "github.com/holdgate/holdgate/internal/shared"

// The shared map is a hash, and all times in it are microseconds of the server's clock:
//
//	revision    grows with each change, also over a loss of the server's data: it is the time
//	            of the change, or 1 more than the last one
//	tag, map    of the map without its hints
//	number      the generation and 1; 0: none
//	replaced    see sitemap.Copy
//	restored    1, or empty
//	at          when the map was received
//	hints_tag, hints
//	hints_at    when the hints were received; empty: they are stale
//
// It has no expiry, so that a site keeps its map while no router runs.

// mapStart begins the scripts that change the map.
const mapStart = `
local names = {'revision', 'tag', 'number', 'replaced', 'restored', 'at', 'hints_tag', 'hints_at'}
local zero = string.rep('0', 20)
local old = {}
for i, value in ipairs(redis.call('HMGET', KEYS[1], unpack(names))) do old[names[i]] = value or '' end
if old.tag == '' then old.number, old.replaced = zero, zero end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function whole(n) return string.format('%.0f', n) end
local revision = whole(math.max(now, (tonumber(old.revision) or 0) + 1))
local function answer(outcome)
  local m = redis.call('HMGET', KEYS[1], unpack(names))
  return {outcome, m[1] or '0', whole(now), m[2] or '', m[7] or '', m[3] or zero, m[4] or zero}
end
local function write(outcome, ...)
  redis.call('HSET', KEYS[1], 'revision', revision, ...)
  redis.call('PUBLISH', KEYS[2], revision)
  return answer(outcome)
end
`

// putMap decides on a proposal, which is a push or an offer.
//
// A push follows the rules of sitemap.Store. Of two maps of which each was put in force
// without the other, the script keeps one in this order: the one with the higher number, where
// a map that was forced counts as the highest that it replaced, and wins against that one; the
// one that was pushed, not restored from a file; the one that was received later.
var putMap = shared.NewScript("map_put", mapStart+`
local offer, tag, number, replaced, restored = ARGV[1] ~= '', ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local at, text, hints_tag, hints = now - ARGV[6], ARGV[7], ARGV[8], ARGV[10]
local hints_at = ARGV[9] == '' and '' or whole(now - ARGV[9])
local force, condition = ARGV[11] ~= '', ARGV[12]
local function max(a, b) if a > b then return a end return b end

local function conflict()
  if force or old.number == zero or number == zero or number > old.number then return false end
  return not (number == old.number and old.restored ~= '')
end
local function wins()
  if number ~= zero and old.number ~= zero then
    local mine, theirs = max(number, replaced), max(old.number, old.replaced)
    if mine ~= theirs then return mine > theirs end
    local forced, held = replaced == mine, old.replaced == theirs
    if forced ~= held then return forced end
  end
  if restored ~= old.restored then return restored == '' end
  local before = tonumber(old.at)
  if at ~= before then return at > before end
  return tag > old.tag
end
local function put(outcome)
  if outcome == 'accepted' then
    replaced = max(replaced, max(old.number, old.replaced))
    if replaced < number then replaced = zero end
  else
    replaced = old.replaced
  end
  return write(outcome, 'tag', tag, 'map', text, 'number', number, 'replaced', replaced, 'restored', restored,
    'at', whole(at), 'hints_tag', hints_tag, 'hints', hints, 'hints_at', hints_at)
end
-- The map is the shared one already. It may have been pushed, or its hints be newer.
local function merge()
  local changed = {}
  local function set(...) for _, v in ipairs({...}) do changed[#changed + 1] = v end end
  if replaced > old.replaced then set('replaced', replaced) end
  if restored == '' and old.restored ~= '' then set('restored', '', 'at', whole(at)) end
  if hints_at ~= '' and hints_tag ~= old.hints_tag and (old.hints_at == '' or tonumber(hints_at) > tonumber(old.hints_at)) then
    set('hints_tag', hints_tag, 'hints', hints, 'hints_at', hints_at)
  end
  if #changed == 0 then return answer('unchanged') end
  return write('unchanged', unpack(changed))
end

if offer then
  if old.tag == tag then return merge() end
  if old.tag == '' or wins() then return put('accepted') end
  return answer('kept')
end
if condition ~= '' and (old.tag == '' or condition ~= '*' and not string.find(condition, ',' .. old.tag .. ',', 1, true)) then
  return answer('mismatch')
end
if old.tag == tag then return put('unchanged') end
if conflict() then return answer('conflict') end
return put('accepted')
`)

// putHints replaces the hints of the map with a tag.
var putHints = shared.NewScript("map_hints", mapStart+`
if old.tag == '' or old.tag ~= ARGV[1] then return answer('mismatch') end
return write('accepted', 'hints_tag', ARGV[2], 'hints', ARGV[3], 'hints_at', whole(now))
`)

// getMap returns the map, without its text if its tag is the given one.
var getMap = shared.NewScript("map_get", `
local time = redis.call('TIME')
local m = redis.call('HMGET', KEYS[1], 'revision', 'tag', 'number', 'replaced', 'restored', 'at', 'hints_tag', 'hints', 'hints_at')
local text = ''
if m[2] and m[2] ~= ARGV[1] then text = redis.call('HGET', KEYS[1], 'map') end
local zero = string.rep('0', 20)
return {m[1] or '0', string.format('%.0f', time[1] * 1000000 + time[2]), m[2] or '', text, m[3] or zero, m[4] or zero,
  m[5] or '', m[6] or '', m[7] or '', m[8] or '', m[9] or ''}
`)
