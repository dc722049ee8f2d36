// SPDX-License-Identifier: Apache-2.0

package access

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// numbered is a key as long as those of NewKey.
func numbered(i int) string { return fmt.Sprintf("hg-%043d", i) }

// manyKeys is a file of the first n numbered keys, with quotas.
func manyKeys(t testing.TB, n int) *Keys {
	t.Helper()
	var b strings.Builder
	b.WriteString("keys:\n")
	for i := range n {
		fmt.Fprintf(&b, "- {id: id-%d, tenant: t, key_hash: %s, quota: {requests_per_minute: 1000000000, "+
			"per_model: {llama: {requests_per_minute_per_replica: 1000000000}}}}\n", i, hashOf(numbered(i)))
	}
	return mustParse(t, b.String())
}

func TestADecisionAllocatesNothing(t *testing.T) { // not parallel: allocations are counted
	k := manyKeys(t, 1000)
	now := time.Now()
	token := "Bearer " + numbered(500)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		key, ok := k.Lookup(token, "", now)
		if !ok || !key.Charge("llama", 3, now).OK || !key.Allowed("llama") {
			t.Error("refused")
		}
	}))
	unknown, long := numbered(10_000), strings.Repeat("x", usualKey+1)
	for secret, most := range map[string]int{unknown: 0, long: 1, strings.Repeat("x", maxKey+1): 0} {
		require.Equal(t, most, int(testing.AllocsPerRun(1000, func() {
			if _, ok := k.Lookup("", secret, now); ok {
				t.Error("found")
			}
		})))
	}
}

func BenchmarkLookup(b *testing.B) {
	k := manyKeys(b, 10_000)
	token := "Bearer " + numbered(5000)
	now := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := k.Lookup(token, "", now); !ok {
			b.Fatal("not found")
		}
	}
}

func BenchmarkCharge(b *testing.B) {
	key := manyKeys(b, 10_000).ByID("id-5000")
	b.ReportAllocs()
	for b.Loop() {
		if !key.Charge("llama", 3, time.Now()).OK {
			b.Fatal("refused")
		}
	}
}

func BenchmarkParse(b *testing.B) {
	text := []byte(one("id: a", "quota: {requests_per_minute: 600}"))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse(text); err != nil {
			b.Fatal(err)
		}
	}
}
