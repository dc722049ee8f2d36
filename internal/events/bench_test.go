// SPDX-License-Identifier: Apache-2.0

package events

import "testing"

func BenchmarkAdd(b *testing.B) {
	l := NewLog()
	b.ReportAllocs()
	for b.Loop() {
		l.Add(Event{Type: Held, Model: "llama-3.3-70b", Kind: "chat"})
	}
}
