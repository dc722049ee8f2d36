// SPDX-License-Identifier: Apache-2.0

package holdstate

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestAWarmRequestAllocatesNothing calls what every served request calls.
// Allocations are counted for the whole process, so it runs alone.
func TestAWarmRequestAllocatesNothing(t *testing.T) {
	r := newRig(Options{Limits: wide})
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if r.Waiting(llama) {
			t.Error("nobody waits")
		}
		r.Update(llama)
		r.Place(time.Unix(1, 0))
	}), "nobody waits")
	w := r.hold(t, Request{Target: qwen})
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if r.Waiting(llama) {
			t.Error("nobody waits for this one")
		}
	}), "somebody waits for another model")
	w.Report(Leave)
}

func BenchmarkWaitingNobody(b *testing.B) {
	b.ReportAllocs()
	r := newRig(Options{Limits: wide})
	for b.Loop() {
		if r.Waiting(llama) {
			b.Fatal("nobody waits")
		}
	}
}

// BenchmarkHoldGrantDone holds, grants and ends requests, one at a time.
func BenchmarkHoldGrantDone(b *testing.B) {
	b.ReportAllocs()
	slots := newFakeSlots()
	m := New(Options{Limits: wide, Slots: slots})
	for b.Loop() {
		w, err := m.Hold(slots.claiming(Request{Target: llama, Key: "a", ClientIDs: [2]string{idA}, Bytes: 1000}))
		if err != nil {
			b.Fatal(err)
		}
		replica := slots.add(llama, 1)
		m.Update(llama)
		w.Report(Done).Grant.Release()
		slots.drop(llama, replica)
	}
}

// BenchmarkReleaseThousand is a registration that a thousand waiters of ten keys
// wait for, with a slot for each; the waiters come and go outside the clock.
func BenchmarkReleaseThousand(b *testing.B) {
	b.ReportAllocs()
	slots := newFakeSlots()
	m := New(Options{Limits: wide, Slots: slots})
	ws := make([]*Waiter, 1000)
	for b.Loop() {
		b.StopTimer()
		for i := range ws {
			var err error
			if ws[i], err = m.Hold(slots.claiming(Request{Target: llama, Key: strconv.Itoa(i % 10)})); err != nil {
				b.Fatal(err)
			}
		}
		replica := slots.add(llama, len(ws))
		b.StartTimer()
		m.Update(llama)
		b.StopTimer()
		for _, w := range ws {
			w.Report(Done).Grant.Release()
		}
		slots.drop(llama, replica)
		b.StartTimer()
	}
}
