// SPDX-License-Identifier: Apache-2.0

package access

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var noon = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// hashOf is the key_hash of a key.
func hashOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// mustParse reads a keys file that must be good.
func mustParse(t testing.TB, text string) *Keys {
	t.Helper()
	k, err := Parse([]byte(text))
	require.NoError(t, err)
	return k
}

// one is a file with the key "secret" and more fields of its entry.
func one(fields ...string) string {
	return "keys:\n- key_hash: " + hashOf("secret") + "\n  tenant: acme\n  " + strings.Join(fields, "\n  ") + "\n"
}

func TestEveryFieldIsRead(t *testing.T) {
	t.Parallel()
	k := mustParse(t, one(
		"id: acme-prod", "name: Acme, production", "models: [llama, qwen/qwen3]", "scopes: [eu, us]",
		"redirect: never", "max_occupancy_share: 0.25", "expires: 2027-01-01",
		"quota: {requests_per_minute: 600, per_model: {llama: {requests_per_minute_per_replica: 10}}}",
	))
	require.Len(t, k.byID, 1)
	require.Equal(t, []string{"acme"}, k.Tenants())
	key := k.ByID("acme-prod")
	require.Equal(t, "acme-prod", key.ID)
	require.Equal(t, "Acme, production", key.Name)
	require.Equal(t, "acme", key.Tenant)
	require.Equal(t, []string{"eu", "us"}, key.Scopes)
	require.True(t, key.RedirectNever)
	require.InDelta(t, 0.25, key.Share, 0)
	require.True(t, key.Allowed("llama"))
	require.True(t, key.Allowed("qwen/qwen3"))
	require.False(t, key.Allowed("mistral"))
	at, ok := key.Expires()
	require.True(t, ok)
	require.Equal(t, time.Date(2027, 1, 2, 0, 0, 0, 0, time.UTC), at)
	require.Equal(t, 9, key.Charge("llama", 1, noon).Remaining)
	require.Equal(t, 598, key.Charge("qwen/qwen3", 1, noon).Remaining)
}

func TestWhatIsLeftOut(t *testing.T) {
	t.Parallel()
	key := mustParse(t, one()).ByID(hashOf("secret")[:8])
	require.Equal(t, key.ID, key.Name)
	require.Empty(t, key.Scopes)
	require.False(t, key.RedirectNever)
	require.InDelta(t, 1.0, key.Share, 0)
	require.True(t, key.Allowed("anything"))
	_, ok := key.Expires()
	require.False(t, ok)
	require.False(t, key.Expired(noon.AddDate(1000, 0, 0)))
	require.Equal(t, Result{OK: true, Remaining: Unlimited}, key.Charge("anything", 0, noon))
	require.False(t, mustParse(t, one("redirect: allow")).ByID(key.ID).RedirectNever)
	require.Equal(t, "a", mustParse(t, one("id: a")).ByID("a").Name)
}

// With such a file no request is allowed, which may be intended.
func TestAFileWithoutKeysIsGood(t *testing.T) {
	t.Parallel()
	k := mustParse(t, "keys: []")
	require.Empty(t, k.byID)
	require.Empty(t, k.Tenants())
}

// YAML reads some hashes as numbers, which may not change them.
func TestAHashMayLookLikeANumber(t *testing.T) {
	t.Parallel()
	for _, hash := range []string{
		strings.Repeat("12345678", 8),
		strings.Repeat("01234567", 8),
		"1e" + strings.Repeat("0", 61) + "2",
		strings.Repeat("ABCDEF01", 8),
	} {
		id := strings.ToLower(hash[:8])
		k := mustParse(t, "keys: [{tenant: a, key_hash: "+hash+"}]")
		require.NotNil(t, k.ByID(id), hash)
	}
}

func TestExpiry(t *testing.T) {
	t.Parallel()
	for text, last := range map[string]time.Time{
		"2027-01-01":                  time.Date(2027, 1, 2, 0, 0, 0, 0, time.UTC),
		"'2027-02-28'":                time.Date(2027, 3, 1, 0, 0, 0, 0, time.UTC),
		"2027-12-31":                  time.Date(2028, 1, 1, 0, 0, 0, 0, time.UTC),
		"2027-01-01T18:00:00Z":        time.Date(2027, 1, 1, 18, 0, 0, 0, time.UTC),
		"2027-01-01T18:00:00.5Z":      time.Date(2027, 1, 1, 18, 0, 0, 5e8, time.UTC),
		"'2027-01-01T18:00:00+02:00'": time.Date(2027, 1, 1, 16, 0, 0, 0, time.UTC),
	} {
		k := mustParse(t, one("id: a", "expires: "+text))
		for now, good := range map[time.Time]bool{last.Add(-1): true, last: false, last.Add(time.Hour): false} {
			require.Equal(t, !good, k.ByID("a").Expired(now), "%s at %s", text, now)
			_, ok := k.Lookup("Bearer secret", "", now)
			require.Equal(t, good, ok, "%s at %s", text, now)
		}
	}
}

func TestEveryProblemOfAFileIsReported(t *testing.T) {
	t.Parallel()
	other := hashOf("other")
	for name, c := range map[string]struct {
		file string
		want []string
	}{
		"empty":               {"", []string{"must not be empty"}},
		"comment":             {"# nothing", []string{"must not be empty"}},
		"null":                {"~", []string{"must be a mapping, is empty (line 1)"}},
		"list":                {"[]", []string{"must be a mapping, is a list (line 1)"}},
		"no list":             {"{}", []string{"needs keys (line 1)"}},
		"empty list":          {"keys:", []string{"keys: must be a list, is empty (line 1)"}},
		"keys a mapping":      {"keys: {}", []string{"keys: must be a list, is a mapping (line 1)"}},
		"two documents":       {"keys: []\n---\nkeys: []", []string{"must hold one YAML document"}},
		"half a document":     {"keys: []\n---\n[", []string{"is not YAML: line 3: did not find expected node content"}},
		"no YAML":             {"keys: [", []string{"is not YAML: line 1: did not find expected node content"}},
		"anchor not there":    {"keys: *secret", []string{"is not YAML: it refers to an anchor that is not there"}},
		"unknown":             {"keys: []\nkey: 1", []string{"key: is not known (line 2)"}},
		"twice":               {"keys: []\nkeys: []", []string{"keys: is given twice: first in line 1 (line 2)"}},
		"key no string":       {"keys: []\n1: 2", []string{`each key must be a string, in quotes where it looks like something else, is the int "1" (line 2)`}},
		"merge":               {"keys: []\n<<: {}", []string{`each key must be a string, in quotes where it looks like something else, is the merge "<<" (line 2)`}},
		"entry empty":         {"keys: [~]", []string{"keys[0]: must be a mapping, is empty (line 1)"}},
		"entry a word":        {"keys: [word]", []string{`keys[0]: must be a mapping, is "word" (line 1)`}},
		"entry tagged":        {"keys: [!x {}]", []string{"keys[0]: must be a mapping, has a tag of its own (line 1)"}},
		"entry without all":   {"keys: [{}]", []string{"keys[0]: needs key_hash (line 1)", "keys[0]: needs tenant (line 1)"}},
		"entry unknown":       {one("model: [a]"), []string{"keys[0].model: is not known (line 4)"}},
		"entry twice":         {one("id: a", "id: b"), []string{"keys[0].id: is given twice: first in line 4 (line 5)"}},
		"hash short":          {"keys: [{tenant: a, key_hash: abcd}]", []string{"keys[0].key_hash: must be the SHA-256 hash of the key, in 64 hexadecimal digits (line 1)"}},
		"hash not hex":        {"keys: [{tenant: a, key_hash: " + strings.Repeat("g", 64) + "}]", []string{"keys[0].key_hash: must be the SHA-256 hash of the key, in 64 hexadecimal digits (line 1)"}},
		"hash null":           {"keys: [{tenant: a, key_hash: }]", []string{"keys[0].key_hash: must be the SHA-256 hash of the key, in 64 hexadecimal digits (line 1)"}},
		"hash a list":         {"keys: [{tenant: a, key_hash: []}]", []string{"keys[0].key_hash: must be the SHA-256 hash of the key, in 64 hexadecimal digits (line 1)"}},
		"hash of nothing":     {"keys: [{tenant: a, key_hash: " + hashOf("") + "}]", []string{"keys[0].key_hash: is the hash of an empty key (line 1)"}},
		"hash zeros":          {"keys: [{tenant: a, key_hash: '" + strings.Repeat("0", 64) + "'}]", []string{"keys[0].key_hash: must not be all zeros (line 1)"}},
		"hash twice":          {one("id: a") + "- {id: b, tenant: a, key_hash: " + strings.ToUpper(hashOf("secret")) + "}", []string{"keys[1].key_hash: is given twice: it is the hash of keys[0] (line 5)"}},
		"id twice":            {one("id: a") + "- {id: a, tenant: a, key_hash: " + other + "}", []string{`keys[1].id: is given twice: "a" is the id of keys[0] (line 5)`}},
		"id is a default":     {one() + "- {id: '" + hashOf("secret")[:8] + "', tenant: a, key_hash: " + other + "}", []string{`keys[1].id: is given twice: "` + hashOf("secret")[:8] + `" is the id of keys[0] (line 5)`}},
		"default is an id":    {one("id: '"+other[:8]+"'") + "- {tenant: a, key_hash: " + other + "}", []string{"keys[1].key_hash: begins with " + other[:8] + ", which is the id of keys[0]: give one of them another id (line 5)"}},
		"id empty":            {one("id: ''"), []string{"keys[0].id: must not be empty (line 4)"}},
		"id a number":         {one("id: 5"), []string{`keys[0].id: must be a string, in quotes where it looks like something else, is the int "5" (line 4)`}},
		"id null":             {one("id:"), []string{"keys[0].id: must be a string, in quotes where it looks like something else, is empty (line 4)"}},
		"name long":           {one("name: " + strings.Repeat("x", 257)), []string{"keys[0].name: must have at most 256 bytes, has 257 (line 4)"}},
		"name with newline":   {one(`name: "a\nb"`), []string{`keys[0].name: must not contain control characters, is "a\nb" (line 4)`}},
		"name with C1":        {one(`name: "a\u0085b"`), []string{`keys[0].name: must not contain control characters, is "a\u0085b" (line 4)`}},
		"name a list":         {one("name: [a]"), []string{"keys[0].name: must be a string, in quotes where it looks like something else, is a list (line 4)"}},
		"name an alias":       {one("id: &x a", "name: *x"), []string{"keys[0].name: must be written out, is a reference to an anchor (line 5)"}},
		"models empty":        {one("models: []"), []string{"keys[0].models: must not be an empty list: leave it out to allow all models (line 4)"}},
		"models null":         {one("models:"), []string{"keys[0].models: must be a list, is empty (line 4)"}},
		"models a word":       {one("models: llama"), []string{`keys[0].models: must be a list, is "llama" (line 4)`}},
		"models twice":        {one("models: [a, b, a]"), []string{"keys[0].models[2]: is given twice: it is also keys[0].models[0] (line 4)"}},
		"models bad":          {one("models: [a, 1, '']"), []string{`keys[0].models[1]: must be a string, in quotes where it looks like something else, is the int "1" (line 4)`, "keys[0].models[2]: must not be empty (line 4)"}},
		"scopes empty":        {one("scopes: []"), []string{"keys[0].scopes: must not be an empty list: leave it out to allow all sites (line 4)"}},
		"scopes twice":        {one("scopes: [eu, eu]"), []string{"keys[0].scopes[1]: is given twice: it is also keys[0].scopes[0] (line 4)"}},
		"redirect":            {one("redirect: no"), []string{`keys[0].redirect: must be allow or never, is "no" (line 4)`}},
		"redirect a bool":     {one("redirect: false"), []string{`keys[0].redirect: must be allow or never, is the bool "false" (line 4)`}},
		"share zero":          {one("max_occupancy_share: 0"), []string{`keys[0].max_occupancy_share: must be a number above 0 and at most 1, is the int "0" (line 4)`}},
		"share negative":      {one("max_occupancy_share: -0.1"), []string{`keys[0].max_occupancy_share: must be a number above 0 and at most 1, is the float "-0.1" (line 4)`}},
		"share over 1":        {one("max_occupancy_share: 1.01"), []string{`keys[0].max_occupancy_share: must be a number above 0 and at most 1, is the float "1.01" (line 4)`}},
		"share no number":     {one("max_occupancy_share: .nan"), []string{`keys[0].max_occupancy_share: must be a number above 0 and at most 1, is the float ".nan" (line 4)`}},
		"share a word":        {one("max_occupancy_share: '0.5'"), []string{`keys[0].max_occupancy_share: must be a number above 0 and at most 1, is "0.5" (line 4)`}},
		"expires a word":      {one("expires: tomorrow"), []string{`keys[0].expires: must be a date such as 2027-01-31, or a time such as 2027-01-31T18:00:00Z, is "tomorrow" (line 4)`}},
		"expires no date":     {one("expires: 2027-02-30"), []string{`keys[0].expires: must be a date such as 2027-01-31, or a time such as 2027-01-31T18:00:00Z, is "2027-02-30" (line 4)`}},
		"expires a number":    {one("expires: 2027"), []string{`keys[0].expires: must be a date such as 2027-01-31, or a time such as 2027-01-31T18:00:00Z, is the int "2027" (line 4)`}},
		"expires no zone":     {one("expires: 2027-01-01T10:00:00"), []string{`keys[0].expires: must be a date such as 2027-01-31, or a time such as 2027-01-31T18:00:00Z, is "2027-01-01T10:00:00" (line 4)`}},
		"expires year 1":      {one("expires: 0001-01-01T00:00:00Z"), []string{`keys[0].expires: must be a date such as 2027-01-31, or a time such as 2027-01-31T18:00:00Z, is the timestamp "0001-01-01T00:00:00Z" (line 4)`}},
		"quota null":          {one("quota:"), []string{"keys[0].quota: must be a mapping, is empty (line 4)"}},
		"quota unknown":       {one("quota: {requests_per_second: 1}"), []string{"keys[0].quota.requests_per_second: is not known (line 4)"}},
		"quota zero":          {one("quota: {requests_per_minute: 0}"), []string{`keys[0].quota.requests_per_minute: must be a whole number from 1 to 1000000000, is the int "0" (line 4)`}},
		"quota too large":     {one("quota: {requests_per_minute: 1000000001}"), []string{`keys[0].quota.requests_per_minute: must be a whole number from 1 to 1000000000, is the int "1000000001" (line 4)`}},
		"quota huge":          {one("quota: {requests_per_minute: 99999999999999999999999}"), []string{`keys[0].quota.requests_per_minute: must be a whole number from 1 to 1000000000, is the float "99999999999999999999999" (line 4)`}},
		"quota a part":        {one("quota: {requests_per_minute: 1.5}"), []string{`keys[0].quota.requests_per_minute: must be a whole number from 1 to 1000000000, is the float "1.5" (line 4)`}},
		"per model a list":    {one("quota: {per_model: []}"), []string{"keys[0].quota.per_model: must be a mapping, is a list (line 4)"}},
		"per model empty":     {one("quota: {per_model: {llama: {}}}"), []string{"keys[0].quota.per_model.llama: needs requests_per_minute_per_replica (line 4)"}},
		"per model null":      {one("quota: {per_model: {llama: }}"), []string{"keys[0].quota.per_model.llama: must be a mapping, is empty (line 4)"}},
		"per model unknown":   {one("quota: {per_model: {llama: {requests_per_minute: 1, requests_per_minute_per_replica: 1}}}"), []string{"keys[0].quota.per_model.llama.requests_per_minute: is not known (line 4)"}},
		"per model bad":       {one("quota: {per_model: {llama: {requests_per_minute_per_replica: no}}}"), []string{`keys[0].quota.per_model.llama.requests_per_minute_per_replica: must be a whole number from 1 to 1000000000, is "no" (line 4)`}},
		"per model twice":     {one("quota: {per_model: {a: {requests_per_minute_per_replica: 1}, a: {requests_per_minute_per_replica: 2}}}"), []string{"keys[0].quota.per_model.a: is given twice: first in line 4 (line 4)"}},
		"per model not there": {one("models: [llama]", "quota: {per_model: {lama: {requests_per_minute_per_replica: 1}}}"), []string{"keys[0].quota.per_model.lama: is not in the models of this key (line 5)"}},
		"per model odd name":  {one("quota: {per_model: {'a b': {}, '': {}}}"), []string{`keys[0].quota.per_model["a b"]: needs requests_per_minute_per_replica (line 4)`, `keys[0].quota.per_model[""]: must not be empty (line 4)`, `keys[0].quota.per_model[""]: needs requests_per_minute_per_replica (line 4)`}},
		"all at once": {"keys:\n- tenant: ''\n- {key_hash: x, tenant: a, quota: {requests_per_minute: -1}}\nmore: 1\n", []string{
			"keys[0].tenant: must not be empty (line 2)", "keys[0]: needs key_hash (line 2)",
			"keys[1].key_hash: must be the SHA-256 hash of the key, in 64 hexadecimal digits (line 3)",
			`keys[1].quota.requests_per_minute: must be a whole number from 1 to 1000000000, is the int "-1" (line 3)`,
			"more: is not known (line 4)",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k, err := Parse([]byte(c.file))
			require.Nil(t, k)
			var found Problems
			require.ErrorAs(t, err, &found)
			require.Equal(t, strings.Join(c.want, "\n"), found.Error())
		})
	}
}

func TestTheNumberOfProblemsIsBounded(t *testing.T) {
	t.Parallel()
	_, err := Parse([]byte("keys: [" + strings.Repeat("{},", 1000) + "]"))
	var found Problems
	require.ErrorAs(t, err, &found)
	require.Len(t, found, 101)
	require.Equal(t, "more than 100 problems: the rest is not listed", found[100].String())
}

// A key that was pasted in a wrong place is not shown in a message.
func TestNoMessageShowsAKey(t *testing.T) {
	t.Parallel()
	key := NewKey()
	hash := hashOf(key)
	for _, file := range []string{
		"keys: [{tenant: a, key_hash: %s}]", "keys: [{%s: a}]", "%s: a", "%s", "keys: %s", "keys: [%s]", "keys: *%s",
		one("redirect: %s"), one("expires: %s"), one("quota: {requests_per_minute: %s}"), one("models: [{%s: a}]"),
		one("quota: {per_model: {%s: a}}"), one("id: &%s a", "name: *%[1]s"), one("id: [%s"), "keys: [{%s: 1, %[1]s: 2}]",
		one("id: \"%s\\n\""), "%%TAG %s\n---\nkeys: []", "keys: !<%s> []", "keys: !%s []", "keys: [!%s x]", one("redirect: !%s a"),
		one("id: !%s a"), one("expires: !%s a"), one("id: !!%s a"), one("? !%s a\n  : b"),
	} {
		for _, secret := range []string{key, hash} {
			_, err := Parse(fmt.Appendf(nil, file, secret))
			if err == nil && secret == hash {
				continue // at its right place
			}
			require.Error(t, err, file)
			require.NotContains(t, err.Error(), secret[10:20], file)
		}
	}
}
